#!/bin/bash
# Runs COMMAND with its output in LOG. Prints TITLE, how far ninja is and the time taken; shows the
# end of the output where the command fails.
# Usage: scripts/step.sh LOG TITLE COMMAND...
log=$1 title=$2
shift 2
mkdir -p "$(dirname "$log")"
echo "== $title: $*" >>"$log"
start=$SECONDS shown=$SECONDS lines=$(wc -l <"$log")
"$@" >>"$log" 2>&1 &
trap 'kill $! 2>/dev/null' INT TERM
far() { tail -n "+$((lines + 1))" "$log" | grep -ao '^\[[0-9]*/[0-9]*\]' | tail -1; }
[ -t 1 ] && every=1 || { every=60; echo "$title ..."; }
while kill -0 $! 2>/dev/null; do
  sleep 0.2
  if [ $((SECONDS - shown)) -ge $every ]; then
    shown=$SECONDS
    [ -t 1 ] && printf '\r%s ... %d s %s \033[K' "$title" $((SECONDS - start)) "$(far)" ||
      echo "  $((SECONDS - start)) s $(far)"
  fi
done
wait $!
status=$?
[ -t 1 ] && printf '\r\033[K'
if [ $status != 0 ]; then
  echo "$title: failed. The end of $log:" >&2
  tail -n "+$((lines + 1))" "$log" | tail -40 >&2
else
  echo "$title: done in $((SECONDS - start)) s"
fi
exit $status
