#!/usr/bin/env bash
# Prefill on one host, gateway and decode on another, KV by NIXL over TCP. The second host is a network namespace here,
# with an address of its own; on two machines the three commands marked with (*) are all there is.
#
#   .venv/bin/pip install -e '.[nixl]'
#   sudo examples/two-hosts.sh
#
# Needs ip (iproute2), curl, and the right to make network namespaces. Everything it made is gone when it ends.
set -euo pipefail
cd "$(dirname "$0")/.."

lineclear=${LINECLEAR:-.venv/bin/lineclear}
other=lineclear-other-$$
here=10.213.78.1
there=10.213.78.2
http=8137
pids=()
logs=$(mktemp -d)

clean_up() {
    kill "${pids[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    ip netns del "$other" 2>/dev/null || true
    rm -rf "$logs"
}
trap clean_up EXIT

wait_for() { # FILE TEXT
    for _ in $(seq 600); do
        grep -q "$2" "$1" && return
        sleep 0.1
    done
    echo "no \"$2\" within a minute:" >&2
    cat "$1" >&2
    exit 1
}

ip netns add "$other"
ip link add "lc$$a" type veth peer name "lc$$b" netns "$other"
ip address add "$here/30" dev "lc$$a"
ip link set "lc$$a" up
ip -n "$other" address add "$there/30" dev "lc$$b"
ip -n "$other" link set "lc$$b" up
ip -n "$other" link set lo up

# (*) on the first host
"$lineclear" gateway --control "$here:7178" --port "$http" > "$logs/gateway" 2>&1 &
pids+=($!)
# (*) on the first host
"$lineclear" worker --join "$here:7178" --role decode --worker-id decode-here --mover nixl > "$logs/decode" 2>&1 &
pids+=($!)
# (*) on the second host
ip netns exec "$other" \
    "$lineclear" worker --join "$here:7178" --role prefill --worker-id prefill-there --mover nixl > "$logs/prefill" 2>&1 &
pids+=($!)

wait_for "$logs/decode" "prefill instance prefill-there, .* is connected"
grep -h "joined\|is connected" "$logs/decode" "$logs/prefill"

# A prompt long enough to be worth a handoff: this script.
python3 - "$0" > "$logs/body" <<'PYTHON'
import json, pathlib, sys
print(json.dumps({"prompt": pathlib.Path(sys.argv[1]).read_text(), "max_tokens": 16, "temperature": 0}))
PYTHON
curl -sf "http://127.0.0.1:$http/v1/completions" -H 'Content-Type: application/json' -d "@$logs/body"
echo
curl -sf "http://127.0.0.1:$http/metrics" | grep '^lineclear_handoff.*decode-here'
