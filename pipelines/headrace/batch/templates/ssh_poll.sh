# Prints for each known job: its name, its state, its exit code or `-`.
for n; do
    d="$HOME/.headrace/ssh-jobs/$n"
    [ -d "$d" ] || continue
    state=gone code=-
    if [ ! -s "$d/process" ]; then
        state=running
    else
        read -r pid start < "$d/process"
        case "$(cut -d " " -f 3,22 "/proc/$pid/stat" 2> /dev/null)" in
            Z*) ;;  # killed, but not reaped yet
            *" $start") state=running ;;
        esac
    fi
    if [ -s "$d/code" ]; then  # checked last: the process ends after it has written the code
        state=ended code=$(cat "$d/code")
    fi
    if [ -e "$d/cancelled" ] && [ $state != running ]; then state=cancelled; fi
    echo "$n $state $code"
done
