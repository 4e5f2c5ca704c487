#!/usr/bin/env bash
# What the steps of action.yml run: action.sh install, audit or is-safe. Inputs come as variables. The current folder is a
# checkout that a stranger may have written: no Python imports from it, and nothing that is read again is kept in it.
set -euo pipefail

install() {
  local folder
  folder=$(mktemp -d "$RUNNER_TEMP/faultline-XXXXXX")
  cd "$folder"
  python -I -m venv environment
  environment/bin/python -I -m pip install --quiet "$GITHUB_ACTION_PATH[run]"
  echo "$folder/environment/bin" >>"$GITHUB_PATH"
  echo "folder=$folder" >>"$GITHUB_OUTPUT"
}

# Twice, for two readers: code scanning and the log. Exit code 1 says that a failure is certain.
audit() {
  local files code=0 sarif="$FOLDER/faultline.sarif"
  mapfile -t files < <(sed '/^[[:space:]]*$/d' <<<"$FILES")
  faultline audit --format sarif "${files[@]}" >"$sarif" || code=$?
  ((code < 2)) || return "$code"
  echo "sarif=$sarif" >>"$GITHUB_OUTPUT"
  faultline audit --format github "${files[@]}" || code=$?
  [ "$code" = 1 ] && [ "$FAIL" != true ] || return "$code"
}

# The verdict goes into the job's summary; a change of nothing is worth no new comment. Its folder has no other run.
is_safe() {
  local options code=0 summary="$FOLDER/summary.md"
  read -rd '' -a options <<<"$OPTIONS" || true
  export FAULTLINE_FOLDER
  FAULTLINE_FOLDER=$(mktemp -d "$FOLDER/is-safe-XXXXXX")
  faultline is-safe --base "$BASE" --to "$TO" "${options[@]}" || code=$?
  ((code != 2)) || return 2
  cp "$FAULTLINE_FOLDER"/results/is-safe-*/summary.md "$summary"
  cat "$summary" >>"$GITHUB_STEP_SUMMARY"
  echo "summary=$summary" >>"$GITHUB_OUTPUT"
  if grep -q '"identical": true' "$FAULTLINE_FOLDER"/results/is-safe-*/verdict.json; then
    echo identical=true >>"$GITHUB_OUTPUT"
  fi
  return "$code"
}

"${1//-/_}"
