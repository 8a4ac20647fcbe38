"""Each deliberate mistake around arms, trees and caches is rejected by the test named beside it."""

import pytest
import test_caches
import test_commands
import test_notebook
import test_pytest_arms
import test_revision
import twins


def command(test):
    return lambda folder, _: test(folder, test_commands.make_program(folder))


def tree(test, *more):
    return lambda folder, _: test(test_revision.make_project(folder), *more)


def cache(test):
    return lambda folder, patch: test(test_caches.make_project(folder, patch))


TWINS = {
    "a tree is trusted without looking at it": (
        "revision._sound",
        "return not changes(tree)",
        "return True",
        tree(test_revision.test_a_tree_that_was_tampered_with_is_not_used, "Makefile"),
    ),
    "an overlay is known by its place alone": (
        "revision._key",
        "[(to, digest) for",
        "[to for",
        tree(test_revision.test_overlays_go_into_a_private_copy_and_are_part_of_its_key),
    ),
    "the working tree is captured in the user's index": (
        "revision._snapshot",
        '"add", "-u", "--", ".", GIT_INDEX_FILE=str(index)',
        '"add", "-u", "--", "."',
        tree(test_revision.test_the_working_tree_beside_a_revision_is_a_tree_as_well),
    ),
    "any library will do": (
        "runner._check_libraries",
        "if built and arm.revision and",
        "if built and False and",
        lambda *_: test_revision.test_a_library_that_its_tree_did_not_build_is_refused(),
    ),
    "compilers share a cache": (
        "caches._key",
        "facts = [arm.name, arm.reference, arm.parameters, ",
        "facts = [",
        cache(test_caches.test_an_arm_finds_its_own_cache_again_and_never_the_others),
    ),
    "start-up is warm": (
        "caches.environment",
        "secrets.token_hex(8) if cold else _key(arm)",
        "_key(arm)",
        cache(test_caches.test_start_up_is_cold_in_every_launch_and_ends_with_the_first_iteration),
    ),
    "an arm may say any time": (
        "runner._Said.__init__",
        "if said > ended.seconds:",
        "if False:",
        command(test_commands.test_more_time_than_the_process_took_is_void),
    ),
    "an arm that says nothing is not asked": (
        "runner.Runner._output",
        'if self.question.fingerprint != "none":',
        'if self.question.fingerprint != "none" and said.work:',
        command(test_commands.test_an_arm_that_prints_no_fingerprint_beside_one_that_does_is_wrong),
    ),
    "yesterday's file is an output": (
        "runner._outputs",
        "path.stat().st_mtime_ns != stale.get(path) and ",
        "",
        command(test_commands.test_an_old_file_is_not_this_runs_output),
    ),
    "every benchmark is judged as if it were alone": (
        "benchmarks.summarise",
        "adjusted[name] > alpha",
        "ps[name] > alpha",
        lambda *_: test_pytest_arms.test_a_regression_that_many_tests_produce_by_chance_is_none(),
    ),
    "one interruption passes for work": (
        "callables.calls_for",
        "seconds() >= TARGET and seconds() >= TARGET",
        "seconds() >= TARGET",
        lambda *_: test_notebook.test_one_interruption_does_not_pass_for_work(),
    ),
}


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_is_rejected(name, tmp_path, monkeypatch):
    path, old, new, test = TWINS[name]
    with twins.broken(path, old, new), pytest.raises((Exception, pytest.fail.Exception)):
        test(tmp_path, monkeypatch)
