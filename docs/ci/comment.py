"""Post the gate's page as a comment of a pull or merge request, or replace the one that an earlier run posted.

    comment.py github FILE    GITHUB_TOKEN, GITHUB_REPOSITORY (owner/name), NUMBER; GITHUB_API_URL if not github.com
    comment.py gitlab FILE    GITLAB_TOKEN, CI_API_V4_URL, CI_PROJECT_ID, CI_MERGE_REQUEST_IID

The comment is found by the marker that gate.md begins with. Standard library only; copy it beside the pipeline.

Sources of the interfaces: "REST API endpoints for issue comments", GitHub documentation; "Notes API", GitLab
documentation.
"""

import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

MARKER = "<!-- harness gate -->"
#: GitHub takes 65,536 characters
LONGEST = 65000
PAGE = 100


class Fault(Exception):
    """What is said before the script ends with 2."""


def variable(name, default=None):
    value = os.environ.get(name) or default
    if value is None:
        raise Fault(f"{name}: expected a value in the environment, found none; see the head of comment.py")
    return value


def github():
    """Where the comments are listed, how one is named, the method that replaces it, and the headers."""
    api = variable("GITHUB_API_URL", "https://api.github.com")
    repository = f"{api}/repos/{variable('GITHUB_REPOSITORY')}"
    headers = {"Authorization": f"Bearer {variable('GITHUB_TOKEN')}", "Accept": "application/vnd.github+json"}
    return f"{repository}/issues/{variable('NUMBER')}/comments", f"{repository}/issues/comments", "PATCH", headers


def gitlab():
    project = urllib.parse.quote(variable("CI_PROJECT_ID"), safe="")
    notes = f"{variable('CI_API_V4_URL')}/projects/{project}/merge_requests/{variable('CI_MERGE_REQUEST_IID')}/notes"
    return notes, notes, "PUT", {"PRIVATE-TOKEN": variable("GITLAB_TOKEN")}


def ask(method, address, headers, body=None):
    data = None if body is None else json.dumps({"body": body}).encode()
    sent = headers | {"Content-Type": "application/json", "User-Agent": "harness-gate"}
    request = urllib.request.Request(address, data, sent, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise Fault(f"{method} {address}: expected an answer, found {error.code} {error.reason}") from None
    except (OSError, ValueError) as error:
        raise Fault(f"{method} {address}: expected an answer, found {getattr(error, 'reason', error)}") from None


def post(comments, one, method, headers, body):
    """Replace the comment that begins with the marker, or post a new one; returns what was done."""
    page = 1
    while True:
        found = ask("GET", f"{comments}?per_page={PAGE}&page={page}", headers)
        for comment in found:
            if (comment.get("body") or "").startswith(MARKER):
                ask(method, f"{one}/{comment['id']}", headers, body)
                return f"comment {comment['id']} replaced"
        if len(found) < PAGE:
            break
        page += 1
    return f"comment {ask('POST', comments, headers, body)['id']} posted"


def page(path):
    """The comment's text, cut where the forge would refuse it."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise Fault(f"{path}: expected the gate.md of a run, found {error.strerror}; did the gate run?") from None
    if not text.startswith(MARKER):
        raise Fault(f"{path}: expected '{MARKER}' at its beginning, found something else; give the gate.md of a run")
    if len(text) > LONGEST:
        text = text[:LONGEST].rpartition("\n")[0] + "\n\nThe rest is in gate.md among the artifacts.\n"
    return text


def main(words):
    forges = {"github": github, "gitlab": gitlab}
    if len(words) != 2 or words[0] not in forges:
        raise Fault(f"arguments: expected github or gitlab and a file, found '{' '.join(words)}'")
    body = page(words[1])
    print(post(*forges[words[0]](), body))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Fault as fault:
        print(f"comment.py: {fault}", file=sys.stderr)
        sys.exit(2)
