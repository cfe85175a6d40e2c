# Starts job $1 with time limit $2, seconds. An incomplete script on standard input is refused; a
# second start of the same job changes nothing. `timeout` makes a process group; the job has ended
# when all of that group have.
umask 077
n=$1
d="$HOME/.headrace/ssh-jobs/$n"
mkdir -p "${d%/*}"
find "${d%/*}" -mindepth 2 -maxdepth 2 -name code -mtime +30 -printf '%h\0' | xargs -0r rm -rf
cat > "$d.$$"
if [ "$(tail -n 1 "$d.$$")" != "# complete" ]; then rm "$d.$$"; exit 1; fi
if ! mkdir "$d" 2> /dev/null; then rm "$d.$$"; echo "$n"; exit 0; fi
mv "$d.$$" "$d/script"
HEADRACE_JOB_ID="$n" setsid sh -c '
echo "$$ $(cut -d " " -f 22 /proc/$$/stat)" > "$1/new"
mv "$1/new" "$1/process"
timeout --kill-after=30 "$2" /bin/bash "$1/script" &
job=$! code=0
wait $job || code=$?
exec 2> /dev/null
kill -TERM -$job  # processes that a script leaves if its other hosts have failed
for tick in $(seq 100); do
    kill -s 0 -$job || break
    sleep 0.1
done
kill -KILL -$job
echo $code > "$1/new"
mv "$1/new" "$1/code"
' sh "$d" "$2" < /dev/null > "$d/output" 2>&1 &
until [ -s "$d/process" ]; do sleep 0.05; done
echo "$n"
