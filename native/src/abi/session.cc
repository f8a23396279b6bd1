// Engines and sessions.
#include <span>
#include <vector>

#include "abi/guard.h"
#include "abi/handles.h"

using namespace tv;
using namespace tv::abi;

namespace {

Feed feed_of(const tv_step& step, const char* call) {
  require(step.session, call, "session");
  if (step.n_ids != 0) require(step.ids, call, "ids");
  if (step.n_rows != 0) require(step.rows, call, "rows");
  return {step.session->session.get(), {step.ids, step.n_ids}, {step.rows, step.n_rows}};
}

// One session's step.
tv_status forward(tv_session* session, const int32_t* ids, size_t n_ids, const int32_t* rows, size_t n_rows,
                  float* logits, const char* call) {
  return guard([&] {
    const Feed feed = feed_of({session, ids, n_ids, rows, n_rows}, call);
    feed.session->engine().step({&feed, 1}, logits);
  });
}

}  // namespace

extern "C" {

tv_status tv_engine_create(tv_model* model, const tv_plan* plan, const tv_engine_options* options,
                           tv_engine** out) {
  return guard([&] {
    require(model, "tv_engine_create", "model");
    require(out, "tv_engine_create", "out");
    const tv_engine_options known = read_options<tv_engine_options>(options, {}, "tv_engine_create");
    auto serving = plan != nullptr ? plan->plan : model->model->load_plan("serve");
    *out = new tv_engine{std::make_shared<Engine>(
        std::move(serving), model->model,
        Engine::Options{known.threads, known.max_sessions, known.context, known.pages})};
  });
}

tv_status tv_engine_free(tv_engine* engine) {
  return guard([&] { delete engine; });
}

tv_status tv_engine_get_info(const tv_engine* engine, tv_engine_info* out) {
  return guard([&] {
    require(engine, "tv_engine_get_info", "engine");
    const Engine& e = *engine->engine;
    const Engine::Options& options = e.options();
    const Engine::Usage usage = e.usage();
    fill(out,
         {0, e.threads(), static_cast<int32_t>(e.serving().vocab), options.max_sessions, usage.sessions,
          options.context, e.serving().page, options.pages, usage.pages_free,
          static_cast<uint64_t>(e.serving().page_bytes), usage.arena_bytes},
         "tv_engine_get_info");
  });
}

tv_status tv_engine_step(tv_engine* engine, const tv_step* steps, size_t n_steps, float* logits) {
  return guard([&] {
    require(engine, "tv_engine_step", "engine");
    if (n_steps != 0) require(steps, "tv_engine_step", "steps");
    std::vector<Feed> feeds;
    for (size_t i = 0; i < n_steps; ++i) feeds.push_back(feed_of(steps[i], "tv_engine_step"));
    engine->engine->step(feeds, logits);
  });
}

tv_status tv_engine_cancel(tv_engine* engine) {
  return guard([&] {
    require(engine, "tv_engine_cancel", "engine");
    engine->engine->cancel();
  });
}

tv_status tv_session_create(tv_engine* engine, tv_session** out) {
  return guard([&] {
    require(engine, "tv_session_create", "engine");
    require(out, "tv_session_create", "out");
    *out = new tv_session{engine->engine->open()};
  });
}

tv_status tv_session_free(tv_session* session) {
  return guard([&] { delete session; });
}

tv_status tv_session_length(const tv_session* session, int64_t* length) {
  return guard([&] {
    require(session, "tv_session_length", "session");
    require(length, "tv_session_length", "length");
    *length = session->session->length();
  });
}

tv_status tv_session_prefill(tv_session* session, const int32_t* ids, size_t n_ids, float* logits) {
  const int32_t last = n_ids > 0 && n_ids <= INT32_MAX ? static_cast<int32_t>(n_ids - 1) : 0;
  return forward(session, ids, n_ids, &last, logits != nullptr && n_ids > 0 ? 1 : 0, logits,
                 "tv_session_prefill");
}

tv_status tv_session_decode(tv_session* session, int32_t id, float* logits) {
  const int32_t row = 0;
  return forward(session, &id, 1, &row, logits != nullptr ? 1 : 0, logits, "tv_session_decode");
}

tv_status tv_session_forward(tv_session* session, const int32_t* ids, size_t n_ids, const int32_t* rows,
                             size_t n_rows, float* logits) {
  return forward(session, ids, n_ids, rows, n_rows, logits, "tv_session_forward");
}

tv_status tv_session_reset(tv_session* session) {
  return guard([&] {
    require(session, "tv_session_reset", "session");
    session->session->truncate(0);
  });
}

tv_status tv_session_truncate(tv_session* session, int64_t n) {
  return guard([&] {
    require(session, "tv_session_truncate", "session");
    session->session->truncate(n);
  });
}

tv_status tv_session_fork(const tv_session* session, tv_session** out) {
  return guard([&] {
    require(session, "tv_session_fork", "session");
    require(out, "tv_session_fork", "out");
    *out = new tv_session{session->session->fork()};
  });
}

}  // extern "C"
