#!/usr/bin/env bash
# Puts the newest summary of `make is-safe` below results/ on GitHub, with the GitHub CLI:
#   post.sh comment HEAD RUN_URL     as the one comment on the open pull request from OWNER:BRANCH
#   post.sh issue RESULT RUN_URL     as the text of the one rolling issue, open unless RESULT is success
set -euo pipefail
TITLE="The newest releases are not known to be safe"
LABEL="newest-releases"
MARK="<!-- faultline: is-safe -->" # tells its comment from those of other workflows, which the same bot writes

summary() { find results -path '*is-safe*' -name summary.md -type f | LC_ALL=C sort | tail -n 1; }

# A summary may have been written by code that nobody has reviewed, or quote it: it is cut to what GitHub takes,
# and mentions nobody.
body() {
  printf 'From [this run](%s), which wrote the following itself:\n\n' "$1"
  if [ -n "$(summary)" ]; then
    head -c 50000 "$(summary)" | { iconv -c -f utf-8 -t utf-8 || true; } | sed 's/@/@\xe2\x80\x8b/g'
  else
    echo "Nothing: it ended without a summary."
  fi
}

comment() {
  local pull mine
  if [ -z "$(summary)" ]; then
    echo "no summary, so no comment"
    return
  fi
  pull=$(gh api --method GET "repos/$GITHUB_REPOSITORY/pulls" -f state=open -f head="$1" --jq '.[0].number // empty')
  if [ -z "$pull" ]; then
    echo "no open pull request from $1, so no comment"
    return
  fi
  mine=".[] | select(.user.login == \"github-actions[bot]\" and (.body | startswith(\"$MARK\"))) | .id"
  mine=$(gh api --paginate "repos/$GITHUB_REPOSITORY/issues/$pull/comments" --jq "$mine" | tail -n 1)
  if [ -n "$mine" ]; then
    marked "$2" | gh api --method PATCH "repos/$GITHUB_REPOSITORY/issues/comments/$mine" -F body=@- --silent
  elif grep -qs '"identical": true' "$(dirname "$(summary)")/verdict.json"; then
    echo "nothing to compare, and nothing said before, so no comment"
  else
    marked "$2" | gh api --method POST "repos/$GITHUB_REPOSITORY/issues/$pull/comments" -F body=@- --silent
  fi
}

marked() {
  echo "$MARK"
  body "$1"
}

issue() {
  local number
  number=$(gh issue list --label "$LABEL" --state all --limit 1 --json number --jq '.[].number')
  if [ -n "$number" ]; then
    body "$2" | gh issue edit "$number" --body-file -
    if [ "$1" = success ]; then gh issue close "$number"; else gh issue reopen "$number"; fi
  elif [ "$1" != success ]; then
    gh label create "$LABEL" --force --description "$TITLE"
    body "$2" | gh issue create --title "$TITLE" --label "$LABEL" --body-file -
  fi
}

"$@"
