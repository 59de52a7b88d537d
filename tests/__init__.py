import pytest

# Here, because it has to be said before the first of them is imported.
pytest.register_assert_rewrite("tests.attacks.conftest", "tests.support")
