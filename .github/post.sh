#!/usr/bin/env bash
# Puts the newest summary of `make is-safe` below results/ on GitHub, with the GitHub CLI:
#   post.sh comment PULL RUN_URL     as the one comment on a pull request, a number or OWNER:BRANCH
#   post.sh issue RESULT RUN_URL     as the text of the one rolling issue, open unless RESULT is success
set -euo pipefail
TITLE="The newest releases are not known to be safe"
LABEL="newest-releases"

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
  if [ -z "$(summary)" ]; then
    echo "no summary, so no comment"
    return
  fi
  # The pull request of a branch of this repository has no owner in its name for the GitHub CLI.
  body "$2" | gh pr comment "${1#"${GITHUB_REPOSITORY%%/*}:"}" --edit-last --create-if-none --body-file -
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
