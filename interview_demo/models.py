"""An interview and its turns: what was asked, what was said, and what came of it.

A turn's answer is the first one that arrived. Its score is written only over an older generation, so a late
owner changes nothing; the turn after it exists at most once (unique interview and number).
"""

from django.db import models


class Interview(models.Model):
    """One candidate's session; everything in it belongs to this session and to no other."""

    session = models.UUIDField(unique=True)
    resume_name = models.CharField(max_length=200)
    resume_digest = models.CharField(max_length=64)  #: SHA-256 of the file's bytes
    resume_excerpt = models.TextField()
    model = models.CharField(max_length=100)
    extraction = models.JSONField(null=True)
    extraction_generation = models.BigIntegerField(default=0)
    report = models.JSONField(null=True)
    report_generation = models.BigIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"interview {self.session}"


class Turn(models.Model):
    """One question. Without an answer it waits for the candidate, without a score for the model."""

    interview = models.ForeignKey(Interview, on_delete=models.CASCADE, related_name="turns")
    number = models.PositiveIntegerField()
    main_number = models.PositiveIntegerField()  #: which of the resume's questions it belongs to, from 1
    follow_ups_before = models.PositiveIntegerField(default=0)  #: 0: the resume's question itself
    question = models.TextField()
    answer = models.TextField(default="")
    score = models.JSONField(null=True)
    generation = models.BigIntegerField(default=0)  #: of the flight whose score is stored

    class Meta:
        ordering = ["interview", "number"]
        constraints = [
            models.UniqueConstraint(fields=["interview", "number"], name="interview_demo_turn_once"),
        ]

    def __str__(self) -> str:
        return f"turn {self.number} of {self.interview_id}"

    @property
    def is_follow_up(self) -> bool:
        """It asks deeper into the answer before it."""
        return self.follow_ups_before > 0
