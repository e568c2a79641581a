# Runs the README's first command as a stranger would, asks the README's question over HTTP, stops the server.
# Sourced by .ci/run.

# The first command of README.md's first block, without its comment.
first_command() {
    sed -n '/^```sh$/,/^```$/p' README.md | sed -n '2s/ *#.*//p'
}

# The body of the README's first request.
first_question() {
    sed -n "s/^ *-d '\(.*\)'\$/\1/p" README.md | head -n 1
}

smoke_test() {
    local command question home log server port reply status
    command=$(first_command)
    question=$(first_question)
    case $command in
        "cargo run "*" serve "*) ;;
        *) echo "README.md: its first command is not cargo run ... serve ...: $command" >&2; return 1 ;;
    esac
    home=$(mktemp -d)
    log=$(mktemp)
    # A clean environment: nothing of the caller's may decide which plugin is found. The tool chain stays where it is,
    # and the port is free to be another one than the README's.
    echo "$command --port 0"
    env -i PATH="$PATH" HOME="$home" \
        CARGO_HOME="${CARGO_HOME:-$HOME/.cargo}" RUSTUP_HOME="${RUSTUP_HOME:-$HOME/.rustup}" \
        CARGO_TERM_COLOR=never ${CARGO_TARGET_DIR:+CARGO_TARGET_DIR="$CARGO_TARGET_DIR"} \
        bash -c "exec $command --port 0" >"$log" 2>&1 &
    # cargo replaces itself with the program, so this is the server in the end.
    server=$!
    # shellcheck disable=SC2064 # the values of now are meant
    trap "kill $server 2>/dev/null || true" EXIT

    port=$(smoke_port "$log" "$server") || { cat "$log"; return 1; }
    reply=$(curl -sS --fail-with-body --max-time 120 "http://127.0.0.1:$port/v1/chat/completions" \
        -H 'content-type: application/json' -d "$question") || { echo "$reply"; cat "$log"; return 1; }
    echo "$reply"
    # The demo model knows this one by heart; an answer of other words is a wrong answer.
    case $reply in
        *'"content":"'*'Join one or more path segments'*) ;;
        *) echo "the reply does not speak of joining paths" >&2; cat "$log"; return 1 ;;
    esac

    kill -TERM "$server"
    status=0
    wait "$server" || status=$?
    trap - EXIT
    if [ "$status" != 0 ]; then
        echo "the server ended with status $status after SIGTERM, wanted 0" >&2
        cat "$log"
        return 1
    fi
    # What it learnt about the plugin is the one thing that it may keep.
    if [ -n "$(find "$home" -type f ! -path "$home/.cache/tensorfold/plugins.json")" ]; then
        echo "serving left files in the home folder:" >&2
        find "$home" -type f >&2
        return 1
    fi
    rm -r "$home" "$log"
}

# Prints the port from the serving line; fails when the command ends first, or takes longer than a build may.
smoke_port() {
    local log=$1 server=$2 port
    local deadline=$((SECONDS + 1800))
    while [ "$SECONDS" -lt "$deadline" ]; do
        port=$(sed -n 's|.*serving .* at http://[^ ]*:\([0-9][0-9]*\)/v1.*|\1|p' "$log" | head -n 1)
        if [ -n "$port" ]; then
            echo "$port"
            return
        fi
        kill -0 "$server" 2>/dev/null || { echo "the command ended before it served" >&2; return 1; }
        sleep 0.1
    done
    echo "the command did not print its serving line" >&2
    return 1
}
