#!/usr/bin/env bash
# One comment on a pull request, updated and not repeated. Usage: comment_github.sh OWNER/REPOSITORY NUMBER FILE
set -euo pipefail
repository=$1
number=$2
file=$3
# Of whoever comments here: anybody can begin a comment with the marker. A job's own token may not ask who it is.
login=$(gh api user --jq .login 2>/dev/null) || login=
[[ $login =~ ^[A-Za-z0-9-]+(\[bot\])?$ ]] || login='github-actions[bot]'
known=$(gh api --paginate "repos/$repository/issues/$number/comments" \
  --jq '.[] | select(.user.login == "'"$login"'" and (.body | startswith("<!-- windtunnel -->"))) | .id')
known=${known%%$'\n'*}
if [ -n "$known" ]; then
  gh api --method PATCH "repos/$repository/issues/comments/$known" --field "body=@$file" --silent
else
  gh api --method POST "repos/$repository/issues/$number/comments" --field "body=@$file" --silent
fi
