from lineclear.evaluation.layersplit.traffic import Traffic

TRAFFIC = Traffic(list(range(100, 400)), [(1, 7), (1, 8)])


def test_a_longer_prompt_begins_with_the_shorter_one() -> None:
    short, long = TRAFFIC.prompt(0, 200), TRAFFIC.prompt(0, 900)
    assert long[:200] == short
    assert len(long) == 900


def test_prompts_repeat_the_corpus_from_the_sessions_place_on() -> None:
    prompt = TRAFFIC.prompt(1, 2 + 600)
    assert prompt[:2] == [1, 8]
    place = 7_919 % 300
    assert prompt[2 : 2 + 300 - place] == list(range(100 + place, 400))
    assert prompt[2 + 300 - place : 602 - place] == list(range(100, 400))


def test_sessions_differ_in_their_salt() -> None:
    assert TRAFFIC.prompt(0, 16) != TRAFFIC.prompt(1, 16)
