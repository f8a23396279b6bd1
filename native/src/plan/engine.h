// Many sessions on one serving plan. A step feeds tokens of any number of sessions through one run of the
// plan (or several, where there are many tokens); the keys and values stand in pages of pools that all share.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "plan/pages.h"
#include "plan/program.h"
#include "plan/serving.h"

namespace tv {

class Engine;

// One text: how many tokens it has, and the pages that hold them. Made by Engine::open and fork.
class Session {
 public:
  Session(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session();

  Engine& engine() const { return *engine_; }
  const std::shared_ptr<Engine>& shared_engine() const { return engine_; }
  int64_t length() const;
  void truncate(int64_t length);          // throws invalid_argument for a length that it does not have
  std::shared_ptr<Session> fork() const;  // throws capacity

 private:
  friend class Engine;
  std::shared_ptr<Engine> engine_;
  std::vector<int32_t> pages_;
  int64_t length_ = 0;
};

struct Feed {
  Session* session;
  std::span<const int32_t> ids;
  std::span<const int32_t> rows;  // indices into ids
};

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  struct Options {
    int threads = 0;
    int max_sessions = 0;  // 0: 8
    int64_t context = 0;   // 0: what the model's metadata says
    int64_t pages = 0;     // 0: enough for max_sessions of full context
  };
  struct Usage {
    int sessions;
    int64_t pages_free;
    size_t arena_bytes;
  };

  Engine(std::shared_ptr<const Plan> plan, std::shared_ptr<Model> model, const Options& options);

  const Options& options() const { return options_; }  // with nothing left at 0 but threads
  int threads() const { return program_->threads(); }
  const Serving& serving() const { return serving_; }
  Usage usage() const;

  std::shared_ptr<Session> open();  // throws capacity
  // logits: a row of vocab for each of all rows. Throws, and then no session has changed.
  void step(std::span<const Feed> feeds, float* logits);
  void cancel();

 private:
  friend class Session;
  // What goes into one run of the plan.
  struct Batch {
    std::vector<const Session*> sessions;
    std::vector<int32_t> ids, positions, sequences, rows;
    std::vector<std::pair<size_t, size_t>> gives;  // which row of the run is which row of the caller
    void clear();
  };
  // A wanted row of logits, in the order of the tokens.
  struct Row {
    size_t feed;
    int32_t token;
    size_t out;  // which row of the caller's logits
  };

  void choose_options(const Plan& plan, const Model& model);
  void check(std::span<const Feed> feeds, const float* logits) const;
  void check_feed(const Feed& feed) const;
  int64_t missing_pages(const Feed& feed) const;
  void reserve(std::span<const Feed> feeds);
  void copy_page(int32_t from, int32_t to);
  void give_back(Session& session, size_t keep);
  void run_all(std::span<const Feed> feeds, float* logits);
  void run_batch(float* logits);
  int64_t fill_tables();
  std::vector<Row> order_rows(std::span<const Feed> feeds) const;
  std::shared_ptr<Session> open_locked();

  Serving serving_;
  Options options_;
  std::unique_ptr<Program> program_;
  std::unique_ptr<Pages> pages_;
  int n_sessions_ = 0;
  int64_t most_tokens_, most_rows_, most_sequences_;  // of one run
  Batch batch_;
  std::vector<int32_t> tables_;
  std::atomic<bool> running_{false}, cancel_{false};
  mutable std::mutex mutex_;
};

}  // namespace tv
