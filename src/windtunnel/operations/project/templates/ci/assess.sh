#!/usr/bin/env bash
# What CI does for a pull request: pull the cache, reproduce, check, gate, compare. Usage: assess.sh BASE OUT [FOLDER]
# Works in FOLDER, where params.yaml is. Writes comment.md, comparison.html, gate.xml, sanity.xml and windtunnel.sarif into OUT. Ends with the gate's exit code: 0 passed, 10 failed,
# 20 unsound, 30 no decision. Pushes to the shared remote from the default branch alone.
set -euo pipefail
base=$1
name=${base//[^A-Za-z0-9_.\/-]/_} # as the comment has it: no markup, no mention
out=$2
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "${3:-.}"

# The comment as it will stand: of which commit it speaks, and no longer than GitHub takes (65,536 characters).
write_comment() {
  {
    # By this line the next run finds the comment that it updates.
    echo "<!-- windtunnel -->"
    echo "## windtunnel"
    echo
    if [ -n "${WINDTUNNEL_COMMIT:-}" ]; then echo "Of commit $WINDTUNNEL_COMMIT."; echo; fi
    if [ -n "${WINDTUNNEL_ARTIFACTS:-}" ]; then echo "[Report, pictures and test reports]($WINDTUNNEL_ARTIFACTS)"; echo; fi
    awk '{ n += length($0) + 1 } n <= 60000 { print } END { if (n > 60000) print "\n(cut here: the rest is in the artifacts)" }'
  } >"$out/comment.md"
}

# Without it, the comment of an earlier commit would stay, with a decision that is no more.
no_decision() {
  echo "**no decision**: $1; the log of this job says why" | write_comment
  exit 30
}

# What a pull request has computed stays with it: its code could push any result, which the default branch would then take
# for its own. GitLab sets CI_COMMIT_BRANCH for pipelines of branches alone; GitHub's default branch comes from action.yml.
is_default_branch() {
  case "${GITHUB_EVENT_NAME:-}" in push | schedule | workflow_dispatch) ;; ?*) return 1 ;; esac
  if [ -n "${GITHUB_REF:-}" ]; then
    [ "$GITHUB_REF" = "refs/heads/${WINDTUNNEL_DEFAULT_BRANCH:-}" ]
  else
    [ -n "${CI_COMMIT_BRANCH:-}" ] && [ "$CI_COMMIT_BRANCH" = "${CI_DEFAULT_BRANCH:-}" ]
  fi
}

dvc pull --run-cache --allow-missing || echo "nothing pulled: what is not cached is computed here" >&2
dvc repro || no_decision "\`dvc repro\` ended with $?"
windtunnel sanity --flagged --junit "$out/sanity.xml" >"$out/sanity.txt" || no_decision "\`windtunnel sanity\` ended with $?"
code=0
windtunnel gate --markdown --junit "$out/gate.xml" --sarif "$out/windtunnel.sarif" >"$out/gate.md" || code=$?
case $code in 0 | 10 | 20) ;; *) no_decision "\`windtunnel gate\` ended with $code" ;; esac
# A base without results is no reason to say nothing of this run.
windtunnel compare --markdown --html "$out/comparison.html" -- "$base" >"$out/compare.md" ||
  echo "There is nothing to compare with at \`$name\`: its dvc.lock or its results are unavailable." >"$out/compare.md"
{
  cat "$out/gate.md"
  echo
  echo "<details><summary>Against $name</summary>"
  echo
  cat "$out/compare.md"
  echo
  echo "</details>"
} | write_comment
if is_default_branch; then
  dvc push --run-cache || echo "nothing pushed: the next run computes it again" >&2
fi
exit "$code"
