"""Reading a SchedulerOutput, and the request table, without an engine."""

from types import SimpleNamespace

import pytest
from vllm import SamplingParams
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput

from neuron_sched_lab.runner.request_table import RequestTable
from neuron_sched_lab.runner.step import DecodeStep, PrefillStep, read_step


def new_request(req_id, prompt, *, blocks=(1,), computed=0, prefill=None, seed=None):
    params = SamplingParams(seed=seed) if seed is not None else SamplingParams(temperature=0)
    return NewRequestData(
        req_id=req_id,
        prompt_token_ids=list(prompt),
        mm_features=[],
        sampling_params=params,
        pooling_params=None,
        block_ids=(list(blocks),),
        num_computed_tokens=computed,
        lora_request=None,
        prefill_token_ids=prefill,
    )


def make_output(*, new=(), cached=(), scheduled, padded=None, resumed=()):
    """cached: (req_id, num_computed_tokens, num_output_tokens)."""
    output = SchedulerOutput.make_empty()
    output.scheduled_new_reqs = list(new)
    output.scheduled_cached_reqs = CachedRequestData(
        req_ids=[c[0] for c in cached],
        resumed_req_ids=set(resumed),
        new_token_ids=[],
        all_token_ids={},
        new_block_ids=[None for _ in cached],
        num_computed_tokens=[c[1] for c in cached],
        num_output_tokens=[c[2] for c in cached],
    )
    output.num_scheduled_tokens = scheduled
    output.total_num_scheduled_tokens = sum(scheduled.values())
    if padded is not None:
        output.num_scheduled_tokens_padded = padded
    return output


@pytest.fixture
def table():
    table = RequestTable(num_rows=2, max_model_len=64, max_blocks=4)
    for req_id in "ab":
        table.add(new_request(req_id, range(10, 30)))
    return table


def test_a_new_request_is_a_prefill(table):
    new = new_request("a", range(10, 30), computed=4)
    step = read_step(make_output(new=[new], scheduled={"a": 16}, padded={"a": 32}), table.states)
    assert step == PrefillStep("a", 4, 16, 32, is_last_chunk=True)


def test_a_first_chunk_is_not_the_last(table):
    new = new_request("a", range(10, 30))
    step = read_step(make_output(new=[new], scheduled={"a": 16}, padded={"a": 16}), table.states)
    assert not step.is_last_chunk


def test_a_request_that_computes_its_outputs_again_is_a_prefill(table):
    """Prompt 20, 8 outputs: position 24 comes before the newest token."""
    output = make_output(cached=[("a", 24, 8)], scheduled={"a": 4}, padded={"a": 16})
    assert read_step(output, table.states) == PrefillStep("a", 24, 4, 16, is_last_chunk=True)


def test_decodes_in_the_schedulers_order(table):
    output = make_output(
        cached=[("b", 21, 2), ("a", 20, 1)],
        scheduled={"b": 1, "a": 1},
        padded={"b": 1, "a": 1},
    )
    assert read_step(output, table.states) == DecodeStep(["b", "a"], [21, 20])


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (
            make_output(
                cached=[("a", 20, 1), ("b", 4, 0)],
                scheduled={"a": 1, "b": 8},
                padded={"a": 1, "b": 16},
            ),
            r"mixed batch: prefill of \['b'\] together with decode of \['a'\].*NeuronScheduler",
        ),
        (
            make_output(
                cached=[("a", 2, 0), ("b", 4, 0)],
                scheduled={"a": 1, "b": 8},
                padded={"a": 16, "b": 16},
            ),
            r"2 prefills in one batch: \['a', 'b'\]",
        ),
        (
            make_output(cached=[("a", 20, 1)], scheduled={"a": 1}),
            r"num_scheduled_tokens_padded: missing from the SchedulerOutput for \['a'\]",
        ),
        (
            make_output(cached=[("a", 0, 0)], scheduled={"a": 8}, padded={"a": 4}),
            "num_scheduled_tokens_padded: 4 for 'a' is less than its 8 scheduled tokens",
        ),
        (
            make_output(cached=[("a", 20, 1)], scheduled={"a": 3}, padded={"a": 3}),
            "decode of 'a' has 3 tokens",
        ),
    ],
)
def test_what_no_graph_can_run(table, output, message):
    with pytest.raises(RuntimeError, match=message):
        read_step(output, table.states)


def test_blocks_are_appended_or_replaced(table):
    state = table.states["a"]
    table.append_blocks(state, [7, 8])
    assert table.block_tables[state.row].tolist() == [1, 7, 8, 0]
    table.set_blocks(state, [5])
    assert table.block_tables[state.row].tolist() == [5, 0, 0, 0]
    assert state.num_blocks == 1


def test_rows_are_reused_and_grow(table):
    first = table.states["a"]
    row = first.row
    table.remove("a")
    table.append_token(first, 20, 99)  # came too late: nobody's token
    again = table.add(new_request("c", [1, 2, 3]))
    assert again.row == row
    assert table.token_ids[row, :3].tolist() == [1, 2, 3]
    assert table.token_ids[row, 20] != 99
    kept = table.token_ids[table.states["b"].row, :20].tolist()
    table.add(new_request("d", [4]))
    assert len(table.token_ids) == len(table.block_tables) == 4
    assert table.token_ids[table.states["b"].row, :20].tolist() == kept
    table.remove("never seen")


def test_a_resumed_request_in_v2_form_keeps_its_random_numbers():
    table = RequestTable(num_rows=2, max_model_len=64, max_blocks=4)
    generator = table.add(new_request("a", [1, 2], seed=3)).generator
    state = table.add(new_request("a", [1, 2], seed=3, prefill=[1, 2, 50, 51]))
    assert state.generator is generator
    assert state.output_token_ids == [50, 51]
    assert state.num_prompt_tokens == 2
    assert table.token_ids[state.row, :4].tolist() == [1, 2, 50, 51]


def test_tokens_reach_the_list_that_processors_hold(table):
    state = table.states["a"]
    held = state.output_token_ids
    table.append_token(state, 20, 42)
    table.set_tokens(state, [*range(10, 30), 42, 43])
    assert held == [42, 43]
    assert held is state.output_token_ids


def test_copying_kv_blocks_is_refused():
    from neuron_sched_lab.runner.model_runner import NeuronModelRunner

    output = make_output(scheduled={})
    output.kv_cache_block_copies = [object()]
    runner = SimpleNamespace(
        requests=RequestTable(1, 8, 1), _update_cached=lambda cached: None, kv_caches=[]
    )
    with pytest.raises(RuntimeError, match="kv_cache_block_copies"):
        NeuronModelRunner._update_states(runner, output)
