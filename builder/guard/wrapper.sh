#!/bin/sh
# pip and uv as always, with a word on what stays as the image has it, and a look at it afterwards.
# What keeps it is not this script but the files and settings that the README beside it names.
guard=/opt/spark-build/guard
python=/opt/venv/bin/python
name=${0##*/}

next_on_path() {
    rest=$PATH:
    while [ -n "$rest" ]; do
        folder=${rest%%:*}
        rest=${rest#*:}
        if [ "${folder%/}" = /opt/spark-build/bin ]; then continue; fi
        program=${folder:-.}/$1
        if [ -f "$program" ] && [ -x "$program" ]; then
            printf '%s\n' "$program"
            return 0
        fi
    done
    return 1
}

absent() {
    printf '%s: not found\n' "$name" >&2
    exit 127
}

changing=no
for word in "$@"; do
    case $word in
        install | uninstall | sync | add | remove) changing=yes ;;
    esac
done

if [ "$name" = uv ]; then
    program=$(next_on_path uv) || absent
    set -- "$program" "$@"
elif "$python" -I -c 'import importlib.util as i, sys; sys.exit(i.find_spec("pip") is None)'; then
    set -- "$python" -m pip "$@"
else
    program=$(next_on_path "$name" || next_on_path pip3 || next_on_path pip) || absent
    set -- "$program" --python "$python" "$@"
fi

if [ "$changing" = no ]; then exec "$@"; fi
cat "$guard/notice" >&2
"$@"
status=$?
"$python" "$guard/report.py"
exit "$status"
