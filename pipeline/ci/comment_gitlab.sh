#!/usr/bin/env bash
# One note on a merge request, updated and not repeated. Usage: comment_gitlab.sh FILE
# Needs GITLAB_TOKEN (scope api) beside the variables that GitLab sets for a merge request's pipeline.
set -euo pipefail
file=$1
notes="$CI_API_V4_URL/projects/$CI_PROJECT_ID/merge_requests/$CI_MERGE_REQUEST_IID/notes"
header="PRIVATE-TOKEN: $GITLAB_TOKEN"
known=more page=0
while [ "$known" = more ]; do # a page holds a hundred notes at most
  page=$((page + 1))
  known=$(curl --silent --fail --header "$header" "$notes?per_page=100&page=$page" | python3 -c '
import json, sys
notes = json.load(sys.stdin)
mine = (note["id"] for note in notes if note["body"].startswith("<!-- windtunnel -->"))
print(next(mine, "more" if len(notes) == 100 else ""))')
done
if [ -n "$known" ]; then
  curl --silent --fail --output /dev/null --request PUT --header "$header" --data-urlencode "body@$file" "$notes/$known"
else
  curl --silent --fail --output /dev/null --request POST --header "$header" --data-urlencode "body@$file" "$notes"
fi
