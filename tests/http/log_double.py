"""A log that keeps its events."""


class Log:
    def __init__(self):
        self.events = []

    def info(self, event, **values):
        self.events.append((event, values))

    def warning(self, event, **values):
        self.events.append((event, values))
