#!/bin/sh
# pip and uv as always, with a word on what stays as the image has it, and a look at it afterwards.
# What keeps it is not this script but the files and settings that the README beside it names.
guard=/opt/spark-build/guard
python=/opt/venv/bin/python
name=${0##*/}
run_pip='import sys; sys.path[:] = filter(None, sys.path); import runpy
runpy.run_module("pip", run_name="__main__", alter_sys=True)'

next_on_path() {
    rest=$PATH:
    while [ -n "$rest" ]; do
        folder=${rest%%:*}
        rest=${rest#*:}
        program=${folder:-.}/$1
        # This script under whatever name: a folder can be spelt in many ways, and be linked to.
        if [ "$program" -ef "$guard/wrapper" ]; then continue; fi
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
    # Like `-m pip`, which would take modules out of the folder that it is called in.
    set -- "$python" -c "$run_pip" "$@"
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
