from limiter.rules.resource import Resource


def test_resource_reads_as_on_the_command_line() -> None:
    assert str(Resource("retry_group", "billing")) == "retry_group:billing"
