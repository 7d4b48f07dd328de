from lineclear.kv.layout import KvLayout, Part, PartLayout

GLM_5_BF16 = KvLayout(
    latent=PartLayout(width=512 + 64, value_bytes=2),
    index=PartLayout(width=128, value_bytes=2),
    num_latent_layers=78,
    num_index_layers=78,
    block_size=16,
)


def test_a_glm_5_token_in_bf16() -> None:
    assert GLM_5_BF16.part_bytes_per_token(Part.LATENT) == 1152
    assert GLM_5_BF16.part_bytes_per_token(Part.INDEX) == 256
    assert GLM_5_BF16.bytes_per_token == 78 * (1152 + 256)
    assert GLM_5_BF16.block_bytes == 16 * 78 * (1152 + 256)


def test_layers_that_reuse_a_selection_cache_no_index() -> None:
    layout = KvLayout(PartLayout(10, 4), PartLayout(3, 4), num_latent_layers=4, num_index_layers=1, block_size=2)
    assert layout.bytes_per_token == 4 * 40 + 12


def test_a_budget_buys_whole_blocks() -> None:
    layout = KvLayout(PartLayout(10, 4), PartLayout(3, 4), num_latent_layers=1, num_index_layers=1, block_size=2)
    assert layout.num_blocks_within(103) == 0
    assert layout.num_blocks_within(104) == 1
    assert layout.num_blocks_within(311) == 2
