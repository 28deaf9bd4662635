from django import forms
from django.db import transaction
from django.db.models import Count, F, Prefetch
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from .models import Entry, Feed
from .states import ImportState, state_of
from .tasks import import_feed


class FeedForm(forms.ModelForm):  # type: ignore[type-arg] # generic in the stubs only
    url = forms.URLField(
        label="Address of a feed",
        max_length=500,
        assume_scheme="https",
        error_messages={"unique": "This feed is there already."},
    )

    class Meta:
        model = Feed
        fields = ["url"]


def feeds(request: HttpRequest) -> HttpResponse:
    """Show the page: add a feed, and see the state of all feeds."""
    form = FeedForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        add(form)
        return redirect("feeds")
    shown = newest_feeds()
    is_busy = not all(feed.state.is_over for feed in shown)
    context = {"form": form, "feeds": shown, "is_busy": is_busy}
    return render(request, "feeds/feeds.html", context, status=400 if form.errors else 200)


@transaction.atomic
def add(form: FeedForm) -> None:
    """Save the feed and enqueue its import in one transaction."""
    feed = form.save()
    feed.job_id = import_feed.enqueue(feed.pk).id
    feed.save(update_fields=["job_id"])


def newest_feeds() -> list[Feed]:
    latest = Entry.objects.order_by(F("published").desc(nulls_last=True), "pk")[:5]
    newest = Feed.objects.annotate(entry_count=Count("entries")).order_by("-pk")
    feeds: list[Feed] = list(
        newest.prefetch_related(Prefetch("entries", latest, to_attr="latest"))[:50]
    )
    for feed in feeds:
        feed.state = ImportState("imported") if feed.imported_at else state_of(feed)
    return feeds
