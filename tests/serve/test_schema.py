"""Random requests from the OpenAPI description: never a 500, and every answer is as described."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

pytestmark = [pytest.mark.slow, pytest.mark.untraced]
bounded = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def service(serve):
    with serve(streams=20) as client:
        yield client


@pytest.fixture(scope="module")
def operations(service):
    description = schemathesis.openapi.from_url(f"{service.base_url}/openapi.json")
    return [found.ok() for found in description.get_all_operations()]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_random_requests(operations, mode):
    """Send random requests that fit the description; they may still be refused, as they contain no images."""
    for operation in operations:
        if mode is GenerationMode.NEGATIVE and not (operation.body or operation.path_parameters or operation.query):
            continue  # takes nothing that could be wrong

        @given(case=operation.as_strategy(generation_mode=mode))
        @bounded
        def answers_as_described(case):
            case.call_and_validate(excluded_checks=[positive_data_acceptance])

        answers_as_described()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_random_requests_to_an_existing_stream(operations, mode, service):
    for operation in operations:
        if "{name}" not in operation.path:
            continue

        @given(case=operation.as_strategy(generation_mode=mode))
        @bounded
        def holds(case):
            service.put("/v1/streams/one", json={"labels": ["red circle", "green square"]})  # it may have been deleted
            case.path_parameters["name"] = "one"
            answer = case.call()
            assert answer.status_code < 500, answer.text
            assert b"Traceback" not in answer.content

        holds()
