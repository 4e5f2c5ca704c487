#!/usr/bin/env bash
# What the steps of action.yml run: action.sh install, audit or is-safe. Inputs come as variables.
set -euo pipefail
SARIF=.faultline/faultline.sarif

install() {
  python -m venv "$RUNNER_TEMP/faultline"
  "$RUNNER_TEMP/faultline/bin/pip" install --quiet "$GITHUB_ACTION_PATH[run]"
  echo "$RUNNER_TEMP/faultline/bin" >>"$GITHUB_PATH"
}

# Twice, for two readers: code scanning and the log. Exit code 1 says that a failure is certain.
audit() {
  local files code=0
  mapfile -t files < <(sed '/^[[:space:]]*$/d' <<<"$FILES")
  mkdir -p .faultline
  faultline audit --format sarif "${files[@]}" >"$SARIF" || code=$?
  ((code < 2)) || return "$code"
  faultline audit --format github "${files[@]}" || code=$?
  [ "$code" = 1 ] && [ "$FAIL" != true ] || return "$code"
}

# The verdict goes into the job's summary; a change of nothing is worth no new comment.
is_safe() {
  local options code=0
  read -ra options <<<"$OPTIONS"
  faultline is-safe --base "$BASE" --to "$TO" "${options[@]}" || code=$?
  ((code != 2)) || return 2
  cat .faultline/results/is-safe-*/summary.md >>"$GITHUB_STEP_SUMMARY"
  if grep -q '"identical": true' .faultline/results/is-safe-*/verdict.json; then echo identical=true >>"$GITHUB_OUTPUT"; fi
  return "$code"
}

"${1//-/_}"
