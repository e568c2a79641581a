# Starts a server, asks it something over HTTP, stops it. Sourced by .ci/run.

# smoke_test PROGRAM MODEL
smoke_test() {
    local program=$1 model=$2
    local log server port reply status
    log=$(mktemp)
    # A clean environment: nothing of the caller's may decide which plugin is found.
    env -i PATH=/usr/bin:/bin HOME="$(mktemp -d)" \
        "$program" --backend cpu serve "$model" --port 0 >"$log" 2>&1 &
    server=$!
    # shellcheck disable=SC2064 # the values of now are meant
    trap "kill $server 2>/dev/null || true" EXIT

    port=$(smoke_port "$log" "$server") || { cat "$log"; return 1; }
    reply=$(curl -sS --fail-with-body --max-time 120 "http://127.0.0.1:$port/v1/chat/completions" \
        -H 'content-type: application/json' \
        -d '{"messages": [{"role": "user", "content": "What does os.path.join do?"}], "max_tokens": 64}') \
        || { echo "$reply"; cat "$log"; return 1; }
    echo "$reply"
    # The demo model knows this one by heart; an answer of other words is a wrong answer.
    case $reply in
        *'"content"'*[Jj]oin*) ;;
        *) echo "the reply does not speak of joining" >&2; cat "$log"; return 1 ;;
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
}

# Prints the port from the serving line; fails when the server ends or takes longer than two minutes.
smoke_port() {
    local log=$1 server=$2 port
    local deadline=$((SECONDS + 120))
    while [ "$SECONDS" -lt "$deadline" ]; do
        port=$(sed -n 's|.*serving .* at http://[^ ]*:\([0-9][0-9]*\)/v1.*|\1|p' "$log" | head -n 1)
        if [ -n "$port" ]; then
            echo "$port"
            return
        fi
        kill -0 "$server" 2>/dev/null || { echo "the server ended before it served" >&2; return 1; }
        sleep 0.1
    done
    echo "the server did not print its serving line within two minutes" >&2
    return 1
}
