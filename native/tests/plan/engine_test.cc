// Sessions: the same bits however tokens are fed, pages shared and copied, and nothing changed by a failure.
#include "plan/engine.h"

#include <functional>
#include <thread>

#include "check.h"
#include "plan/toy_model.h"

using namespace tv;

namespace {

using Ids = std::vector<int32_t>;
using Logits = std::vector<float>;

Ids text(int n, int seed) {
  Ids ids;
  for (int i = 0; i < n; ++i) ids.push_back((i * i + seed * 7 + i) % kToyVocab);
  return ids;
}

Logits forward(Session& session, const Ids& ids, const Ids& rows) {
  Logits logits(rows.size() * kToyVocab);
  const Feed feed{&session, ids, rows};
  session.engine().step({&feed, 1}, logits.data());
  return logits;
}

Logits last(Session& session, const Ids& ids) {
  return forward(session, ids, {static_cast<int32_t>(ids.size() - 1)});
}

Logits fresh(Engine& engine, const Ids& ids) {
  const auto session = engine.open();
  return last(*session, ids);
}

Engine::Options options(int threads = 1) {
  Engine::Options o;
  o.threads = threads;
  o.context = 2000;
  return o;
}

void same_bits() {
  const auto engine = toy_engine(options(1)), two = toy_engine(options(2));
  const Ids ids = text(1300, 1);  // three runs
  const auto whole = engine->open(), parts = engine->open(), other = two->open();
  const Logits expected = last(*whole, ids);
  CHECK(whole->length() == 1300);
  Logits logits;
  for (size_t at = 0, n = 1; at < ids.size(); at += n, n = at % 7 == 0 ? 100 : 1)
    logits = last(*parts, Ids(ids.begin() + at, ids.begin() + std::min(at + n, ids.size())));
  CHECK(logits == expected);
  CHECK(last(*other, ids) == expected);

  // Rows in any order, some twice, across runs.
  const Ids rows = {1299, 0, 700, 511, 512, 700};
  const auto again = engine->open();
  logits = forward(*again, ids, rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Logits alone = fresh(*engine, Ids(ids.begin(), ids.begin() + rows[i] + 1));
    CHECK(std::equal(alone.begin(), alone.end(), logits.begin() + static_cast<long>(i) * kToyVocab));
  }
}

void batches() {
  const auto engine = toy_engine(options());
  std::vector<std::shared_ptr<Session>> sessions;
  std::vector<Ids> texts;
  std::vector<Feed> feeds;
  const Ids first = {0};
  for (int i = 0; i < 5; ++i) {
    sessions.push_back(engine->open());
    texts.push_back(text(1 + i * 170, i));
  }
  for (int i = 0; i < 5; ++i)
    feeds.push_back({sessions[i].get(), texts[i], i == 3 ? std::span<const int32_t>() : first});
  Logits logits(4 * kToyVocab);
  engine->step(feeds, logits.data());
  // Then one token each: five decode steps in one run.
  const Ids next = {3};
  for (Feed& feed : feeds) feed = {feed.session, next, first};
  logits.resize(5 * kToyVocab);
  engine->step(feeds, logits.data());
  for (int i = 0; i < 5; ++i) {
    Ids all = texts[i];
    all.push_back(3);
    const Logits alone = fresh(*engine, all);
    CHECK(std::equal(alone.begin(), alone.end(), logits.begin() + i * kToyVocab));
    CHECK(sessions[i]->length() == static_cast<int64_t>(all.size()));
  }
  engine->step({}, nullptr);  // nothing to do is no error
}

void forks() {
  const auto engine = toy_engine(options());
  const Ids ids = text(40, 2);
  const auto session = engine->open();
  last(*session, ids);
  const int64_t held = engine->usage().pages_free;
  const auto copy = session->fork();
  CHECK(engine->usage().pages_free == held && copy->length() == 40);
  const Logits a = last(*copy, {5});  // writes to the third page, which is shared: it is copied
  CHECK(engine->usage().pages_free == held - 1);
  const Logits b = last(*session, {6});
  Ids with_five = ids, with_six = ids;
  with_five.push_back(5);
  with_six.push_back(6);
  CHECK(a == fresh(*engine, with_five) && b == fresh(*engine, with_six) && a != b);

  copy->truncate(20);  // into the second page, which is still shared
  CHECK(copy->length() == 20);
  Ids cut(ids.begin(), ids.begin() + 20);
  cut.push_back(9);
  CHECK(last(*copy, {9}) == fresh(*engine, cut));
  with_six.push_back(1);
  CHECK(last(*session, {1}) == fresh(*engine, with_six));
  CHECK_THROWS(Status::invalid_argument, copy->truncate(22));
  CHECK_THROWS(Status::invalid_argument, copy->truncate(-1));
  copy->truncate(0);
  CHECK(last(*copy, ids) == fresh(*engine, ids));
}

void lifetimes() {
  auto engine = toy_engine(options());
  CHECK(engine->usage().sessions == 0);
  const int64_t all = engine->usage().pages_free;
  auto session = engine->open();
  auto copy = session->fork();
  last(*session, text(100, 1));
  CHECK(engine->usage().sessions == 2 && engine->usage().pages_free == all - 7);
  copy = session->fork();
  session.reset();
  CHECK(engine->usage().pages_free == all - 7);
  copy.reset();
  CHECK(engine->usage().sessions == 0 && engine->usage().pages_free == all);
  session = engine->open();
  engine.reset();
  CHECK(last(*session, {1, 2}).size() == kToyVocab);
}

void full() {
  Engine::Options small = options();
  small.context = 50;
  small.max_sessions = 2;
  small.pages = 5;
  const auto engine = toy_engine(small);
  const auto a = engine->open(), b = engine->open();
  CHECK_THROWS(Status::capacity, engine->open());
  CHECK_THROWS(Status::capacity, a->fork());
  CHECK_THROWS(Status::capacity, last(*a, text(51, 1)));
  last(*a, text(48, 1));
  CHECK_THROWS(Status::capacity, last(*b, text(33, 2)));  // three pages, two are free
  CHECK_THROWS(Status::capacity, last(*a, {1, 2, 3}));
  const Ids one = {1}, more = text(32, 2);
  const Feed feeds[] = {{a.get(), one, {}}, {b.get(), more, {}}};
  CHECK_THROWS(Status::capacity, engine->step(feeds, nullptr));
  CHECK(a->length() == 48 && b->length() == 0 && engine->usage().pages_free == 2);
  Ids whole = text(48, 1);
  whole.push_back(1);
  CHECK(last(*a, {1}) == fresh(*toy_engine(options()), whole));
  last(*b, text(16, 3));
  CHECK(engine->usage().pages_free == 0);
}

void refuses() {
  const auto engine = toy_engine(options()), other = toy_engine(options());
  const auto session = engine->open(), stranger = other->open();
  const Ids ids = {1, 2};
  CHECK_THROWS(Status::invalid_argument, last(*session, {1, kToyVocab}));
  CHECK_THROWS(Status::invalid_argument, last(*session, {-1}));
  CHECK_THROWS(Status::invalid_argument, forward(*session, ids, {2}));
  CHECK_THROWS(Status::invalid_argument, forward(*session, ids, {-1}));
  CHECK_THROWS(Status::invalid_argument, forward(*session, {}, {}));
  const Feed twice[] = {{session.get(), ids, {}}, {session.get(), ids, {}}};
  CHECK_THROWS(Status::invalid_argument, engine->step(twice, nullptr));
  const Feed theirs[] = {{stranger.get(), ids, {}}};
  CHECK_THROWS(Status::invalid_argument, engine->step(theirs, nullptr));
  const Feed nowhere[] = {{session.get(), ids, ids}};
  CHECK_THROWS(Status::invalid_argument, engine->step(nowhere, nullptr));
  CHECK(session->length() == 0 && engine->usage().pages_free == other->usage().pages_free);

  const auto with = [](auto change) {
    Engine::Options o = options();
    change(o);
    toy_engine(o);
  };
  CHECK_THROWS(Status::bad_model, with([](auto& o) { o.context = 0; }));  // the model has no metadata
  CHECK_THROWS(Status::invalid_argument, with([](auto& o) { o.context = -1; }));
  CHECK_THROWS(Status::invalid_argument, with([](auto& o) { o.context = 128 * kToyPage + 1; }));
  CHECK_THROWS(Status::invalid_argument, with([](auto& o) { o.max_sessions = -1; }));
  CHECK_THROWS(Status::invalid_argument, with([](auto& o) { o.pages = 4097; }));
  CHECK_THROWS(Status::invalid_argument, with([](auto& o) { o.threads = -1; }));
}

void cancels() {
  const auto engine = toy_engine(options());
  engine->cancel();  // nothing runs: nothing happens
  const auto session = engine->open();
  const Ids before = text(30, 4), more = text(1900, 5);
  last(*session, before);
  const int64_t pages = engine->usage().pages_free;
  bool cancelled = false;
  for (int attempt = 0; attempt < 1000 && !cancelled; ++attempt) {
    std::atomic<bool> done{false};
    std::thread canceller([&] {
      while (!done) engine->cancel();
    });
    try {
      last(*session, more);
      session->truncate(30);  // the canceller came too late
    } catch (const Error& error) {
      cancelled = error.status() == Status::cancelled;
    }
    done = true;
    canceller.join();
  }
  CHECK(cancelled && session->length() == 30 && engine->usage().pages_free == pages);
  Ids all = before;
  all.push_back(1);
  CHECK(last(*session, {1}) == fresh(*engine, all));
}

void not_serving(const std::function<void(PlanWriter&)>& change) {
  PlanWriter w = toy_plan();
  change(w);
  CHECK_THROWS(Status::bad_model, Serving(*load(w)));
}

void serving_plans() {
  const Serving serving(*load(toy_plan()));
  CHECK(serving.vocab == kToyVocab && serving.page == kToyPage);
  CHECK(serving.page_bytes == 2 * kToyPage * kToyWidth * 4);
  not_serving([](PlanWriter& w) { w.values[0].name = "tokens"; });
  not_serving([](PlanWriter& w) { w.value(Kind::input, DType::f32, "more", {}); });
  not_serving([](PlanWriter& w) { w.outputs[0].first = "scores"; });
  not_serving([](PlanWriter& w) { w.outputs.push_back({"x", 8}); });
  not_serving([](PlanWriter& w) { w.values[6].name = "cache"; });
  not_serving([](PlanWriter& w) { w.value(Kind::state, DType::f32, "kv.1.k", w.values[6].sizes); });
}

}  // namespace

int main() {
  same_bits();
  batches();
  forks();
  lifetimes();
  full();
  refuses();
  cancels();
  serving_plans();
  return check_result();
}
