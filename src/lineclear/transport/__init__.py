"""How processes talk: control links that carry the typed messages of `lineclear.protocol.wire`.

The gateway's end, `worker_links.WorkerLinks`, lives in an asyncio loop and accepts any number of workers. A worker's
end, `gateway_link.GatewayLink`, belongs to a synchronous loop: it polls between two engine steps without waiting, or
sleeps in the poll while there is nothing to compute.

Invariants:
1. A link is one connection: nothing that was sent on it is ever delivered on a later one, so that a restarted process
   never sees what was meant for the life before it.
2. Every `WorkerConnected` is followed by exactly one `WorkerLost`, and no event names that link afterwards.
3. Both ends send a heartbeat when they had nothing else to say. A peer that was silent for `peer_timeout_seconds` is
   lost; a peer whose process ends is lost at once.
4. A malformed, unknown or oversized message closes the link and is counted; so does a peer that does not read.

Plain stream sockets rather than a messaging library: invariant 1 and the immediate, exact notice of a lost peer come
from the operating system here, and a message passes through two threads instead of four.
"""
