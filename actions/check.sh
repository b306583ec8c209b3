#!/usr/bin/env bash
# The check of action.yml, in a checkout of a pull request to a catalogue: it lints the package JSON files that the pull
# request adds or changes, and shows what the bot would publish by them, which tags pages would use, and the difference from
# the version of the base branch. Problems become annotations; the releases go to the log and the job's summary.
#
# Inputs are environment variables (BASE, LARDER, OFFLINE, LARDER_ASSET_BASE, LARDER_DOWNLOADS_URL, GITHUB_TOKEN), never part of
# the text of a script, because some come from the submission.
set -euo pipefail
larder=${LARDER:-$RUNNER_TEMP/larder}
most=20 # files whose releases are shown
published=$RUNNER_TEMP/published.json

if ! git merge-base --end-of-options "${BASE:-none}" HEAD >/dev/null 2>&1; then
  echo "::error::The change cannot be compared with its base. Give actions/checkout fetch-depth: 0."
  exit 1
fi
# changed lists the package JSON files that differ in a way of git diff's --diff-filter.
changed() {
  git diff --no-ext-diff --no-renames --name-only -z --diff-filter="$1" "$BASE...HEAD" -- packages
}
# show shows what would be published by a package JSON.
show() {
  local flags=(--format text)
  if git show "$BASE:$1" >"$published" 2>/dev/null; then
    flags+=(--published "$published")
  fi
  if [ -n "${GITHUB_STEP_SUMMARY:-}" ]; then
    flags+=(--summary "$GITHUB_STEP_SUMMARY")
  fi
  "$larder" show-files "${flags[@]}" -- "$1"
}
mapfile -d '' -t added < <(changed A)
mapfile -d '' -t altered < <(changed MT)
mapfile -d '' -t removed < <(changed D)

flags=()
[ "$OFFLINE" != true ] || flags+=(--offline)
failed=0
if [ ${#added[@]} -gt 0 ]; then
  "$larder" lint --new "${flags[@]}" -- "${added[@]}" || failed=1
fi
if [ ${#altered[@]} -gt 0 ]; then
  "$larder" lint "${flags[@]}" -- "${altered[@]}" || failed=1
fi
if [ ${#removed[@]} -gt 0 ]; then
  echo "::notice::${#removed[@]} files are removed. Published releases of their packages stay; no newer ones follow."
fi

files=("${added[@]}" "${altered[@]}")
if [ ${#files[@]} -eq 0 ]; then
  echo "No package JSON file is added or changed."
elif [ "$OFFLINE" != true ]; then
  for file in "${files[@]:0:most}"; do
    show "$file" || failed=1
  done
  if [ ${#files[@]} -gt $most ]; then
    echo "The releases of $((${#files[@]} - most)) more files are not shown." | tee -a "${GITHUB_STEP_SUMMARY:-/dev/null}"
  fi
fi
exit $failed
