"""The configuration of every component: frozen dataclasses, checked when they are built.

Names are unique over all components, so that a flag, a TOML key and a variable are the field's name and nothing else.

Invariants:
1. Every field has an `Option`; a component that exists holds only allowed values.
2. A constraint between two fields is checked by the component that holds both.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from lineclear.base.errors import ConfigError
from lineclear.config.definition import check_component
from lineclear.config.option import Option, Pattern, Range

BUNDLED_MODEL = "lineclear-tiny"
"""The model that ships inside the package."""

MAX_AUTO_TOTAL_TOKENS = 262_144
"""The largest pool that is chosen without being asked for: two of the longest prompts, and a small host's memory."""


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """Which checkpoint is served."""

    model: Annotated[
        str,
        Option(
            "Directory of a Hugging Face checkpoint, or the name of a bundled model.",
            allowed=Pattern(r".+", "a directory, or the name of a bundled model"),
        ),
    ] = BUNDLED_MODEL

    def __post_init__(self) -> None:
        check_component(self)


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What one engine computes with: memory, budgets, drafting, numerics."""

    max_total_tokens: Annotated[
        int | None,
        Option(
            f"Tokens of KV cache; auto: as memory allows, at most {MAX_AUTO_TOTAL_TOKENS:,}.",
            allowed=Range(1),
            none_word="auto",
        ),
    ] = None
    block_size: Annotated[int, Option("Tokens in a KV block.", allowed=Range(1, 256))] = 16
    max_model_len: Annotated[
        int | None,
        Option(
            "Longest sequence, prompt and output together; auto: as the model and the KV cache allow.",
            allowed=Range(2),
            none_word="auto",
        ),
    ] = None
    prefix_cache: Annotated[bool, Option("Keep computed blocks for later prompts with the same beginning.")] = True
    max_batch_tokens: Annotated[int, Option("Token budget of one engine step.", allowed=Range(1))] = 2048
    max_running: Annotated[int, Option("Sequences that run at once.", allowed=Range(1, 4096))] = 64
    max_waiting: Annotated[
        int, Option("Sequences that may wait; one more is refused with 429.", allowed=Range(0, 1_000_000))
    ] = 256
    draft_tokens: Annotated[int, Option("Tokens drafted for each verify; 0: no drafting.", allowed=Range(0, 15))] = 3
    batch_invariant: Annotated[
        bool, Option("Make a request's tokens independent of its company in the batch, at some cost in speed.")
    ] = True
    device: Annotated[
        str, Option("Where the model runs.", allowed=Pattern(r"cpu|cuda(:\d+)?", "cpu, cuda or cuda:N"))
    ] = "cpu"
    dtype: Annotated[Literal["fp32", "bf16"], Option("Number format of weights, activations and KV cache.")] = "fp32"
    num_threads: Annotated[
        int,
        Option(
            "CPU threads of the engine. One is the fastest for small models and on shared machines.",
            allowed=Range(1, 1024),
        ),
    ] = 1
    kv_sanitizer: Annotated[
        Literal["off", "sample", "full"],
        Option("Look for KV that was written after its last writer was done: in no block, in one of 64, or in all."),
    ] = "off"
    seed: Annotated[int, Option("Seed of sampling without a seed of its own.", allowed=Range(0, 2**63 - 1))] = 0

    def __post_init__(self) -> None:
        check_component(self)
        if self.max_total_tokens is not None and self.max_total_tokens < self.block_size:
            raise ConfigError("max_total_tokens", self.max_total_tokens, f"at least block_size ({self.block_size})")
        if self.max_batch_tokens <= self.draft_tokens:
            raise ConfigError(
                "max_batch_tokens", self.max_batch_tokens, f"more than draft_tokens ({self.draft_tokens})"
            )


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """The tiers of the KV cache below the device, of each worker."""

    host_cache_gib: Annotated[
        float, Option("GiB of host memory for KV that the device has no room for; 0: none.", allowed=Range(0, 65_536))
    ] = 0.0
    disk_cache_dir: Annotated[
        str | None,
        Option(
            "Directory for KV that host memory has no room for; workers may share it, and find it after a restart.",
            allowed=Pattern(r".+", "a directory"),
            none_word="none",
        ),
    ] = None
    disk_cache_gib: Annotated[
        float, Option("GiB of files in disk_cache_dir, for each model and layout.", allowed=Range(0.001, 1_048_576))
    ] = 8.0
    offload_policy: Annotated[
        Literal["write_through", "write_through_selective", "write_back"],
        Option("When KV is copied to the tier below: at once, when it is used again, or before it is given up."),
    ] = "write_through"
    prefetch_policy: Annotated[
        Literal["best_effort", "wait", "timeout"],
        Option("How long a request in the queue waits for KV on disk: not at all, until it is there, or for a time."),
    ] = "timeout"
    prefetch_seconds: Annotated[float, Option("That time.", allowed=Range(0, 3600))] = 2.0

    def __post_init__(self) -> None:
        check_component(self)
        if self.disk_cache_dir is not None and not self.host_cache_gib:
            allowed = "more than 0 with disk_cache_dir: KV goes to disk and comes back through host memory"
            raise ConfigError("host_cache_gib", self.host_cache_gib, allowed)


@dataclass(frozen=True, kw_only=True)
class GatewayConfig:
    """The HTTP surface."""

    host: Annotated[str, Option("Address to listen on.", allowed=Pattern(r"\S+", "a host name or an IP address"))] = (
        "127.0.0.1"
    )
    port: Annotated[int, Option("Port to listen on; 0 picks a free one.", allowed=Range(0, 65_535))] = 8000
    api_key: Annotated[
        tuple[str, ...],
        Option(
            "Key that clients must send; may be given several times. Without one everybody is served.",
            allowed=Pattern(r"[!-~]+", "printable ASCII without spaces"),
            secret=True,
        ),
    ] = ()
    served_model_name: Annotated[
        str | None,
        Option(
            "Model name that clients use; auto: the checkpoint's own name.",
            allowed=Pattern(r"\S+", "a name without spaces"),
            none_word="auto",
        ),
    ] = None
    max_body_bytes: Annotated[int, Option("Largest request body.", allowed=Range(1024))] = 64 * 1024 * 1024
    keep_alive_seconds: Annotated[
        int, Option("How long an idle client connection is kept.", allowed=Range(1, 3600))
    ] = 75
    start_timeout_seconds: Annotated[
        float, Option("How long a request whose worker was lost waits for another one.", allowed=Range(0, 3600))
    ] = 30.0

    def __post_init__(self) -> None:
        check_component(self)


@dataclass(frozen=True, kw_only=True)
class HandoffConfig:
    """How prompts get from prefill instances to decode workers."""

    colocated: Annotated[bool, Option("Let each worker prefill and decode, without any handoff.")] = False
    prefill: Annotated[
        int | None,
        Option(
            "Prefill instances beside the decode workers; auto: one, or none on devices other than the CPU.",
            allowed=Range(1, 256),
            none_word="auto",
        ),
    ] = None
    decode: Annotated[int, Option("Decode workers, or workers that do both.", allowed=Range(1, 256))] = 1
    mover: Annotated[
        Literal["shm", "nixl"], Option("What moves KV: shared memory on one host, or NIXL (the extra `nixl`).")
    ] = "shm"
    min_handoff_tokens: Annotated[
        int,
        Option("Prompt tokens not in decode's cache from which on prefill computes them.", allowed=Range(1)),
    ] = 256
    first_token_seconds: Annotated[
        float, Option("How long a decode worker lets a request wait for its first token.", allowed=Range(0.01, 86_400))
    ] = 600.0
    max_attempts: Annotated[
        int, Option("Handoffs tried for one request before decode computes its prompt.", allowed=Range(1, 100))
    ] = 3

    def __post_init__(self) -> None:
        check_component(self)
        if self.colocated and self.prefill is not None:
            raise ConfigError("prefill", self.prefill, "auto: with colocated no worker only prefills")


@dataclass(frozen=True, kw_only=True)
class RanksConfig:
    """The processes of one prefill instance, which compute its prompts together."""

    cp: Annotated[
        int,
        Option("Processes of each prefill instance: the tokens of a prompt are dealt to them.", allowed=Range(1, 64)),
    ] = 1
    kv_layout: Annotated[
        Literal["layersplit", "replicated"],
        Option("Whether each rank of an instance stores its share of the layers, or all of them."),
    ] = "layersplit"
    staging_gib: Annotated[
        float | None,
        Option(
            "GiB of each rank for what it reads of others' layers; auto: the longest sequence and a batch.",
            allowed=Range(0, 65_536),
            none_word="auto",
        ),
    ] = None
    rank_timeout_seconds: Annotated[
        float,
        Option(
            "How long a rank waits for another one within a step before the instance ends.", allowed=Range(0.1, 3600)
        ),
    ] = 30.0

    def __post_init__(self) -> None:
        check_component(self)


@dataclass(frozen=True, kw_only=True)
class RoutingConfig:
    """Which worker gets a request, and which one nobody gets."""

    routing: Annotated[
        Literal["cache_aware", "least_load", "round_robin"],
        Option("Which worker gets a request: the one with its session or prefix, the least loaded, the next one."),
    ] = "cache_aware"
    routing_imbalance: Annotated[
        float,
        Option("How many times the mean load a worker may have and still get its sessions.", allowed=Range(1, 100)),
    ] = 1.5
    session_header: Annotated[
        tuple[str, ...],
        Option(
            "Header that names a request's session, before those that are known; may be given several times.",
            allowed=Pattern(r"[A-Za-z0-9_-]+", "the name of a header"),
        ),
    ] = ()
    breaker_seconds: Annotated[
        float,
        Option(
            "How long a worker that fails is given nothing; doubled when it fails again.",
            allowed=Range(0.01, 3600),
        ),
    ] = 5.0
    slow_start_seconds: Annotated[
        float, Option("How long a worker that recovered is given less than others.", allowed=Range(0, 3600))
    ] = 30.0
    retry_share: Annotated[float, Option("Requests begun again for each request, at most.", allowed=Range(0, 1))] = 0.1
    retry_burst: Annotated[
        int, Option("Requests that may be begun again however few there were.", allowed=Range(0, 1_000_000))
    ] = 64

    def __post_init__(self) -> None:
        check_component(self)


@dataclass(frozen=True, kw_only=True)
class GuardConfig:
    """What is done about sequences whose state seems broken."""

    guard: Annotated[
        Literal["off", "observe", "retry", "fail"],
        Option("What a verdict does: be counted, have the request tried again elsewhere, or end it; off: no verdicts."),
    ] = "off"
    guard_detector: Annotated[
        Literal["seed", "calibrated"],
        Option("How a sequence is judged: by fixed limits on acceptance, or against this model's baselines."),
    ] = "calibrated"
    guard_baselines: Annotated[
        str | None,
        Option(
            "File of the baselines of `calibrated`; auto: guard.json beside the model.",
            allowed=Pattern(r".+", "a file"),
            none_word="auto",
        ),
    ] = None
    guard_holdback_tokens: Annotated[
        int,
        Option("Tokens that a stream is behind; beginning again within them is not seen.", allowed=Range(0, 4096)),
    ] = 0
    guard_after_sent: Annotated[
        Literal["error", "resume"],
        Option("What follows on what was sent of such an answer: an error, or the rest, computed elsewhere."),
    ] = "error"
    guard_max_attempts: Annotated[
        int,
        Option("Attempts at one answer; the last one is returned whatever it is, marked.", allowed=Range(2, 100)),
    ] = 3
    guard_retry_tokens: Annotated[
        int, Option("Tokens generated in vain for one answer before it is given up.", allowed=Range(0))
    ] = 65_536
    guard_retry_seconds: Annotated[
        float, Option("Age of a request from which on it is not begun again.", allowed=Range(0, 86_400))
    ] = 300.0

    def __post_init__(self) -> None:
        check_component(self)
        if self.guard_holdback_tokens and self.guard in {"off", "observe"}:
            allowed = f"0 with guard {self.guard}: nothing is begun again"
            raise ConfigError("guard_holdback_tokens", self.guard_holdback_tokens, allowed)


@dataclass(frozen=True, kw_only=True)
class LinkConfig:
    """The control links between the gateway and its workers."""

    heartbeat_seconds: Annotated[
        float, Option("Time between two heartbeats on a control link.", allowed=Range(0.01, 60))
    ] = 1.0
    peer_timeout_seconds: Annotated[
        float,
        Option(
            "Silence after which a peer counts as lost; longer than the longest engine step.", allowed=Range(0.1, 3600)
        ),
    ] = 60.0

    def __post_init__(self) -> None:
        check_component(self)
        if self.peer_timeout_seconds < 2 * self.heartbeat_seconds:
            least = 2 * self.heartbeat_seconds
            raise ConfigError("peer_timeout_seconds", self.peer_timeout_seconds, f"at least two heartbeats ({least})")


@dataclass(frozen=True, kw_only=True)
class SupervisorConfig:
    """How the processes are started, restarted and stopped."""

    drain_seconds: Annotated[
        float, Option("How long running requests may finish after the first Ctrl-C.", allowed=Range(0, 86_400))
    ] = 30.0
    max_restarts: Annotated[
        int, Option("Restarts of one process within restart_window_seconds before giving up.", allowed=Range(0, 1000))
    ] = 5
    restart_window_seconds: Annotated[
        float, Option("A process that ran this long is no longer in a crash loop.", allowed=Range(1, 86_400))
    ] = 60.0
    restart_backoff_seconds: Annotated[
        float, Option("Wait before the first restart; doubled for each further one.", allowed=Range(0, 60))
    ] = 0.2
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Option("Least severe log record that is printed.")
    ] = "info"

    def __post_init__(self) -> None:
        check_component(self)


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Everything `lineclear serve` runs with; each process gets the whole and reads its part."""

    source: ModelSource = field(default_factory=ModelSource)
    engine: EngineConfig = field(default_factory=EngineConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    gateway: GatewayConfig = field(default_factory=GatewayConfig)
    handoff: HandoffConfig = field(default_factory=HandoffConfig)
    ranks: RanksConfig = field(default_factory=RanksConfig)
    routing: RoutingConfig = field(default_factory=RoutingConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    link: LinkConfig = field(default_factory=LinkConfig)
    supervisor: SupervisorConfig = field(default_factory=SupervisorConfig)

    def __post_init__(self) -> None:
        if self.handoff.prefill is not None and self.engine.device != "cpu":
            allowed = f"auto on {self.engine.device}: KV is moved between memories of the CPU so far"
            raise ConfigError("prefill", self.handoff.prefill, allowed)
        if self.cache.host_cache_gib and not self.engine.prefix_cache:
            raise ConfigError("host_cache_gib", self.cache.host_cache_gib, "0 without prefix_cache")
        if self.guard.guard != "off" and not self.engine.draft_tokens:
            raise ConfigError("guard", self.guard.guard, "off without draft_tokens: acceptance is what it judges by")
        if self.ranks.cp > 1 and not self.num_prefill:
            raise ConfigError("cp", self.ranks.cp, "1 where no worker only prefills: ranks compute prompts")

    @property
    def num_prefill(self) -> int:
        """Prefill instances of the service; 0: each worker prefills and decodes."""
        if self.handoff.colocated or self.engine.device != "cpu":
            return 0
        return 1 if self.handoff.prefill is None else self.handoff.prefill
