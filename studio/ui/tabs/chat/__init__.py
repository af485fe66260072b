"""The Chat tab: a model beside its base, talks, and tests by a file of questions."""
