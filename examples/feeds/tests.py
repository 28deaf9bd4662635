"""Tests of the importer: ``manage.py test examples.feeds``. The servers are real, on loopback."""
# ruff: noqa: PT009, PT027 - written for `manage.py test`, as Django has it

from datetime import UTC, datetime

from django.db.models.signals import post_save
from django.test import Client, TestCase

from stoker import Cancel, Snooze, lock
from stoker.models import Job

from .models import Entry, Feed
from .parsing import NotAFeed, parse
from .stage.sample_server import SampleServer
from .tasks import FeedUnavailable, import_feed
from .views import FeedForm, add


class ImportTests(TestCase):
    def setUp(self) -> None:
        self.server = self.enterContext(SampleServer(in_haste=True))

    def feed(self, name: str) -> Feed:
        return Feed.objects.create(url=self.server.url(name))

    def imported(self, name: str) -> Feed:
        feed = self.feed(name)
        import_feed.call(feed.pk)
        feed.refresh_from_db()
        return feed

    def test_entries_are_stored(self) -> None:
        feed = self.imported("lighthouse-log.xml")
        self.assertEqual(feed.title, "Lighthouse Log")
        self.assertIsNotNone(feed.imported_at)
        self.assertEqual(feed.entries.count(), 5)
        entry = feed.entries.get(guid="tag:lighthouse.example,2025:log.257")
        self.assertEqual(entry.title, "Lamp changed \N{EN DASH} one hour of dark")
        self.assertEqual(entry.link, "https://lighthouse.example/log/257")
        self.assertEqual(entry.published, datetime(2025, 9, 13, 21, 59, 59, tzinfo=UTC))

    def test_once_more_changes_nothing(self) -> None:
        for name in ("lighthouse-log.xml", "market-prices.xml"):  # with guids, and without
            feed = self.imported(name)
            before = set(feed.entries.values_list("pk", flat=True))
            self.assertEqual(import_feed.call(feed.pk), len(before))
            self.assertEqual(set(feed.entries.values_list("pk", flat=True)), before)

    def test_while_another_worker_imports_it_a_feed_is_left_for_later(self) -> None:
        feed = self.feed("birdwatch.xml")
        with lock(f"import feed {feed.pk}"), self.assertRaises(Snooze):
            import_feed.call(feed.pk)
        self.assertEqual(import_feed.call(feed.pk), 4)

    def test_two_feeds_may_have_the_same_guid(self) -> None:
        one, other = self.imported("birdwatch.xml"), self.imported("old-birdwatch.xml")
        self.assertEqual(one.entries.count(), 4)
        self.assertEqual(other.entries.count(), 4)

    def test_every_encoding_is_read(self) -> None:
        titles = {
            "kirchturm.xml": "Der Kirchturm - Gemeindebrief für Öhringsdorf",
            "river-station.xml": "Речной вокзал",
            "tea-notes.xml": "お茶ノート",
            "mountain-weather.xml": "Mountain Weather",
        }
        for name, title in titles.items():
            with self.subTest(name):
                self.assertEqual(self.imported(name).title, title)

    def test_every_kind_of_date_is_read(self) -> None:
        feed = self.imported("clock-museum.xml")
        moments = feed.entries.order_by("guid").values_list("published", flat=True)
        dates = [moment and moment.strftime("%d %H:%M") for moment in moments]
        expected = ["15 14:30", "12 12:00", "01 10:00", "05 07:00", None, None, None]
        self.assertEqual(dates, expected)

    def test_only_links_to_the_web_get_through(self) -> None:
        feed = self.imported("night-radio.xml")
        self.assertEqual(feed.entries.get(guid="nfr-s1e10").link, "")
        self.assertEqual(feed.entries.get(guid="nfr-s1e11").link, "https://night-radio.example/11")

    def test_an_endless_guid_is_shortened(self) -> None:
        item = "<item><guid>{}</guid><title>{}</title></item>"
        items = [item.format("x" * 500, "one"), item.format("x" * 501, "other")]
        feed = f'<rss version="2.0"><channel>{"".join(items)}</channel></rss>'
        entries = parse(feed.encode(), "application/xml", "http://feeds.example/").entries
        self.assertEqual([len(entry.guid) for entry in entries], [64, 64])
        self.assertNotEqual(entries[0].guid, entries[1].guid)

    def test_what_is_no_feed_is_given_up(self) -> None:
        with self.assertRaisesMessage(NotAFeed, "neither RSS nor Atom"):
            self.imported("knitting-circle.xml")
        with self.assertRaisesMessage(NotAFeed, "404 Not Found"):
            self.imported("closed-blog.xml")
        self.assertTrue(issubclass(NotAFeed, import_feed.give_up_on))
        self.assertFalse(Entry.objects.exists())

    def test_a_server_in_trouble_is_asked_again(self) -> None:
        feed = self.feed("harbour-news.xml")
        for _ in range(2):
            with self.assertRaisesMessage(FeedUnavailable, "500 Internal Server Error"):
                import_feed.call(feed.pk)
        self.assertTrue(issubclass(FeedUnavailable, import_feed.retry_on))
        self.assertEqual(import_feed.call(feed.pk), 5)

    def test_a_feed_that_is_gone_cancels_its_import(self) -> None:
        with self.assertRaises(Cancel):
            import_feed.call(0)


class PageTests(TestCase):
    url = "https://feeds.example/new.xml"

    def test_adding_a_feed_makes_a_job(self) -> None:
        answer = self.client.post("/", {"url": self.url}, follow=True)
        feed = Feed.objects.get()
        result = import_feed.get_result(feed.job_id)
        self.assertEqual(result.args, [feed.pk])
        self.assertContains(answer, self.url)
        self.assertContains(answer, "waiting")
        self.assertContains(answer, "data-busy")

    def test_the_job_is_rolled_back_with_the_feed(self) -> None:
        def fail(*, created: bool, **_: object) -> None:
            if not created:  # so the job is there already
                self.assertEqual(Job.objects.count(), 1)
                raise ZeroDivisionError

        post_save.connect(fail, sender=Feed)
        self.addCleanup(post_save.disconnect, fail, sender=Feed)
        with self.assertRaises(ZeroDivisionError):
            add(FeedForm({"url": self.url}))
        self.assertEqual(Feed.objects.count(), 0)
        self.assertEqual(Job.objects.count(), 0)

    def test_an_address_is_taken_once(self) -> None:
        self.client.post("/", {"url": self.url})
        answer = self.client.post("/", {"url": self.url})
        self.assertContains(answer, "This feed is there already.", status_code=400)
        self.assertEqual(Job.objects.count(), 1)

    def test_nonsense_is_refused(self) -> None:
        answer = self.client.post("/", {"url": "not an address"})
        self.assertContains(answer, "Enter a valid URL.", status_code=400)
        self.assertFalse(Feed.objects.exists())

    def test_other_sites_cannot_add_feeds(self) -> None:
        visitor = Client(enforce_csrf_checks=True)
        self.assertEqual(visitor.post("/", {"url": self.url}).status_code, 403)

    def test_titles_cannot_smuggle_anything_in(self) -> None:
        feed = Feed.objects.create(url=self.url, title="<script>")
        feed.entries.create(guid="1", title="<b>", link="https://feeds.example/?a&b")
        self.assertNotContains(self.client.get("/"), "<b>")
        self.assertContains(self.client.get("/"), "&lt;script&gt;")
