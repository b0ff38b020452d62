def pytest_configure(config):
    """Know the marks of nilearn's tests, which its checks of estimators import."""
    for mark in ("ai_generated", "flaky", "single_process", "thread_unsafe", "timeout"):
        config.addinivalue_line("markers", f"{mark}: nilearn's")
