#!/bin/bash
# Runs COMMAND with its output in LOG. Prints TITLE, ninja's progress and the elapsed time; shows
# the end of the output if the command fails.
# Usage: scripts/step.sh LOG TITLE COMMAND...
log=$1 title=$2
shift 2
mkdir -p "$(dirname "$log")"
echo "== $title: $*" >>"$log"
lines=$(wc -l <"$log")

# The command stays in the foreground, so that Ctrl-C reaches it as usual.
tell() {
  local every=60 start=$SECONDS
  [ -t 1 ] && every=1 || echo "$title ..."
  trap 'kill $! 2>/dev/null; exit' TERM
  while sleep $every >/dev/null 2>&1 & wait $!; do
    far=$(tail -n "+$((lines + 1))" "$log" | grep -ao '^\[[0-9]*/[0-9]*\]' | tail -1)
    [ -t 1 ] && printf '\r%s ... %d s %s \033[K' "$title" $((SECONDS - start)) "$far" ||
      echo "  $((SECONDS - start)) s $far"
  done
}
tell &
teller=$!
trap 'kill $teller 2>/dev/null' EXIT
trap 'exit 130' INT
"$@" >>"$log" 2>&1
status=$?
kill $teller
wait $teller 2>/dev/null
[ -t 1 ] && printf '\r\033[K'
if [ $status != 0 ]; then
  echo "$title: failed. The end of $log:" >&2
  tail -n "+$((lines + 1))" "$log" | tail -40 >&2
else
  echo "$title: done in $SECONDS s"
fi
exit $status
