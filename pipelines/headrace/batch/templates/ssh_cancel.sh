# Ends all processes of jobs on this host.
for n; do
    d="$HOME/.headrace/ssh-jobs/$n"
    if [ -d "$d" ] && [ ! -e "$d/code" ]; then touch "$d/cancelled"; fi
    for tick in $(seq 0 70); do
        found=$(grep -lzx "HEADRACE_JOB_ID=$n" /proc/[0-9]*/environ 2> /dev/null | cut -d / -f 3)
        if [ -z "$found" ]; then break; fi
        if [ "$tick" = 0 ]; then kill -TERM $found 2> /dev/null; fi
        if [ "$tick" -ge 50 ]; then kill -KILL $found 2> /dev/null; fi
        sleep 0.1
    done
done
exit 0
