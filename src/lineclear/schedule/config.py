"""The limits of one worker's steps."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScheduleConfig:
    """How much one step computes and how much one worker takes on."""

    max_batch_tokens: int
    """Tokens that one step computes at most, drafts included."""
    max_running: int
    max_waiting: int
    max_model_len: int
    """Tokens of one sequence at most, outputs included."""
    draft_tokens: int
    """Drafts of one verify at most; 0 turns drafting off."""
    double_cost_len: int
    """Context at which a token costs twice what it costs without any."""
    min_handoff_tokens: int
    """Tokens that a prompt lacks here from which on it is handed off, where somebody can compute it."""
    eos_token_ids: frozenset[int]
    max_step_blocks: int | None = None
    """Blocks that one step's sequences may have together, each counted by itself; a sequence alone always has room.
    None: any number. For passes that read copies of the blocks, and have a memory for so many; as every step brings the
    copies anew, chunks far into a prompt then stay long (`shares.SHORTEST_CHUNK_SHARE_OF_COPIES`)."""
