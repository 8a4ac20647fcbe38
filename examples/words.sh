#!/bin/sh
# An arm in shell: any command is one. It says in one JSON line what its output must agree on (protocol.py, fingerprint):
# sh words.sh TEXT awk|sort counts how often every word occurs.
set -eu
split() { tr -cs '[:alpha:]' '\n' < "$1" | tr '[:upper:]' '[:lower:]'; }
case $2 in
    awk) split "$1" | awk 'NF { n[$1]++ } END { for (word in n) print n[word], word }' | LC_ALL=C sort ;;
    sort) split "$1" | LC_ALL=C sort | uniq -c | awk 'NF > 1 { print $1, $2 }' | LC_ALL=C sort ;;
esac > "counts.$2"
printf '{"kind": "fingerprint", "work": %d, "digests": {"counts": "%s"}}\n' \
    "$(wc -l < "counts.$2")" "$(cksum < "counts.$2" | tr ' ' '-')"
