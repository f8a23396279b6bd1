#include "plan/engine.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "core/error.h"
#include "core/quoted.h"

namespace tv {
namespace {

constexpr int64_t kMostTokens = 256;               // of one run: more are no faster, and need more memory
constexpr int64_t kMostLogits = int64_t{1} << 24;  // values of one run: 64 MiB
constexpr int kDefaultSessions = 8;

// The smallest power of two that is at least n, at most `most`: page tables of few sizes mean few layouts.
int64_t table_width(int64_t n, int64_t smallest, int64_t most) {
  int64_t width = std::max<int64_t>(16, smallest);
  while (width < n) width *= 2;
  return std::min(width, most);
}

int64_t metadata_context(const Model& model) {
  if (model.file() == nullptr) return 0;
  const std::string architecture(model.file()->string("general.architecture", ""));
  return architecture.empty() ? 0 : model.file()->integer(architecture + ".context_length", 0);
}

void in_range(const char* option, int64_t value, int64_t smallest, int64_t largest) {
  if (value < smallest || value > largest)
    fail(Status::invalid_argument, "[engine] %s is %" PRId64 "; allowed: %" PRId64 " to %" PRId64, option,
         value, smallest, largest);
}

}  // namespace

// --- making an engine -------------------------------------------------------------------------------------

Engine::Engine(std::shared_ptr<const Plan> plan, std::shared_ptr<Model> model, const Options& options)
    : serving_(*plan), options_(options) {
  choose_options(*plan, *model);
  const auto largest = [&](uint32_t dim) { return plan->dims[dim].largest; };
  most_tokens_ = std::min(kMostTokens, largest(serving_.t));
  most_rows_ = std::min(std::max<int64_t>(1, kMostLogits / serving_.vocab), largest(serving_.r));
  most_sequences_ = largest(serving_.b);
  if (std::min({most_tokens_, most_rows_, most_sequences_}) < 1 || plan->dims[serving_.t].smallest > 1 ||
      plan->dims[serving_.b].smallest > 1 || plan->dims[serving_.r].smallest > 1)
    fail(Status::bad_model, "[engine] plan %s: T, B and R must have room for 1", quoted(plan->name).c_str());
  pages_ = std::make_unique<Pages>(options_.pages);
  const std::string pages_dim = plan->dims[serving_.n].name;
  program_ = std::make_unique<Program>(
      std::move(plan), std::move(model), options_.threads,
      std::vector<std::pair<std::string, int64_t>>{{pages_dim, options_.pages}}, serving_.only_paged);
}

void Engine::choose_options(const Plan& plan, const Model& model) {
  const Dim& tables = plan.dims[serving_.p];
  const Dim& pool = plan.dims[serving_.n];
  const int64_t longest = std::min<int64_t>(tables.largest * serving_.page, kLargestDim);
  if (options_.max_sessions == 0) options_.max_sessions = kDefaultSessions;
  in_range("max_sessions", options_.max_sessions, 1, 1 << 20);
  if (options_.context == 0) {
    options_.context = std::min(metadata_context(model), longest);
    if (options_.context < 1)
      fail(Status::bad_model,
           "[engine] the model's metadata has no context length: the option context is needed");
  }
  in_range("context", options_.context, 1, longest);
  if (options_.pages == 0) {
    const int64_t each = (options_.context + serving_.page - 1) / serving_.page;
    options_.pages = std::clamp(each * options_.max_sessions, pool.smallest, pool.largest);
  }
  in_range("pages", options_.pages, std::max<int64_t>(1, pool.smallest), pool.largest);
}

Engine::Usage Engine::usage() const {
  std::lock_guard lock(mutex_);
  return {n_sessions_, pages_->free(), program_->arena_bytes()};
}

// --- sessions ---------------------------------------------------------------------------------------------

std::shared_ptr<Session> Engine::open_locked() {
  if (n_sessions_ >= options_.max_sessions)
    fail(Status::capacity, "[session] %d sessions are open; max_sessions is %d", n_sessions_,
         options_.max_sessions);
  auto session = std::make_shared<Session>(shared_from_this());
  ++n_sessions_;
  return session;
}

std::shared_ptr<Session> Engine::open() {
  std::lock_guard lock(mutex_);
  return open_locked();
}

void Engine::give_back(Session& session, size_t keep) {
  while (session.pages_.size() > keep) {
    pages_->release(session.pages_.back());
    session.pages_.pop_back();
  }
}

Session::~Session() {
  std::lock_guard lock(engine_->mutex_);
  engine_->give_back(*this, 0);
  --engine_->n_sessions_;
}

int64_t Session::length() const {
  std::lock_guard lock(engine_->mutex_);
  return length_;
}

void Session::truncate(int64_t length) {
  std::lock_guard lock(engine_->mutex_);
  if (length < 0 || length > length_)
    fail(Status::invalid_argument, "[session] truncate to %" PRId64 "; the session has %" PRId64 " tokens",
         length, length_);
  const int64_t page = engine_->serving_.page;
  engine_->give_back(*this, static_cast<size_t>((length + page - 1) / page));
  length_ = length;
}

std::shared_ptr<Session> Session::fork() const {
  std::lock_guard lock(engine_->mutex_);
  std::vector<int32_t> pages = pages_;
  std::shared_ptr<Session> copy = engine_->open_locked();
  for (int32_t page : pages) engine_->pages_->share(page);
  copy->pages_ = std::move(pages);
  copy->length_ = length_;
  return copy;
}

// --- a step
// -------------------------------------------------------------------------------------------------

void Engine::cancel() {
  if (running_.load()) cancel_.store(true);
}

void Engine::step(std::span<const Feed> feeds, float* logits) {
  std::lock_guard lock(mutex_);
  check(feeds, logits);
  std::vector<size_t> before;
  for (const Feed& feed : feeds) before.push_back(feed.session->pages_.size());
  cancel_.store(false);
  running_.store(true);
  try {
    reserve(feeds);
    run_all(feeds, logits);
  } catch (...) {
    running_.store(false);
    for (size_t i = 0; i < feeds.size(); ++i) give_back(*feeds[i].session, before[i]);
    throw;
  }
  running_.store(false);
  for (const Feed& feed : feeds) feed.session->length_ += static_cast<int64_t>(feed.ids.size());
}

void Engine::check(std::span<const Feed> feeds, const float* logits) const {
  std::vector<const Session*> sessions;
  int64_t missing = 0;
  bool wanted = false;
  for (const Feed& feed : feeds) {
    check_feed(feed);
    sessions.push_back(feed.session);
    missing += missing_pages(feed);
    wanted = wanted || !feed.rows.empty();
  }
  std::sort(sessions.begin(), sessions.end());
  if (std::adjacent_find(sessions.begin(), sessions.end()) != sessions.end())
    fail(Status::invalid_argument, "[step] one session is there twice");
  if (wanted && logits == nullptr)
    fail(Status::invalid_argument, "[step] rows are wanted, but logits is NULL");
  if (missing > pages_->free())
    fail(Status::capacity,
         "[step] %" PRId64 " pages of %" PRId64 " tokens are needed; %" PRId64 " of %" PRId64 " are free",
         missing, serving_.page, pages_->free(), pages_->size());
}

void Engine::check_feed(const Feed& feed) const {
  if (feed.session->engine_.get() != this)
    fail(Status::invalid_argument, "[step] a session belongs to another engine");
  if (feed.ids.empty())
    fail(Status::invalid_argument, "[step] a session is given no ids; wanted: at least one");
  const int64_t length = feed.session->length_;
  if (feed.ids.size() > static_cast<size_t>(options_.context - length))
    fail(Status::capacity, "[step] %zu tokens after %" PRId64 " do not fit; context is %" PRId64,
         feed.ids.size(), length, options_.context);
  for (size_t i = 0; i < feed.ids.size(); ++i)
    if (feed.ids[i] < 0 || feed.ids[i] >= serving_.vocab)
      fail(Status::invalid_argument, "[step] ids[%zu] is %d; the vocabulary is 0 to %" PRId64, i, feed.ids[i],
           serving_.vocab - 1);
  for (size_t i = 0; i < feed.rows.size(); ++i)
    if (feed.rows[i] < 0 || static_cast<size_t>(feed.rows[i]) >= feed.ids.size())
      fail(Status::invalid_argument, "[step] rows[%zu] is %d; there are %zu ids", i, feed.rows[i],
           feed.ids.size());
}

// Pages to take: new ones, and one for a last page that is not full and that others hold, too.
int64_t Engine::missing_pages(const Feed& feed) const {
  const Session& session = *feed.session;
  const int64_t length = session.length_ + static_cast<int64_t>(feed.ids.size());
  const int64_t added =
      (length + serving_.page - 1) / serving_.page - static_cast<int64_t>(session.pages_.size());
  const bool copied = session.length_ % serving_.page != 0 && pages_->shared(session.pages_.back());
  return added + copied;
}

void Engine::reserve(std::span<const Feed> feeds) {
  for (const Feed& feed : feeds) {
    Session& session = *feed.session;
    const auto n_ids = static_cast<int64_t>(feed.ids.size());
    const auto total = static_cast<size_t>((session.length_ + n_ids + serving_.page - 1) / serving_.page);
    session.pages_.reserve(total);
    if (session.length_ % serving_.page != 0 && pages_->shared(session.pages_.back())) {
      const int32_t own = pages_->take();
      copy_page(session.pages_.back(), own);
      pages_->release(session.pages_.back());
      session.pages_.back() = own;
    }
    while (session.pages_.size() < total) session.pages_.push_back(pages_->take());
  }
}

void Engine::copy_page(int32_t from, int32_t to) {
  for (size_t i = 0; i < program_->plan().states.size(); ++i) {
    const View& pool = program_->state(i);
    std::memcpy(pool.as<char>() + pool.first_step() * to, pool.as<char>() + pool.first_step() * from,
                pool.nbytes() / static_cast<size_t>(pool.shape[0]));
  }
}

std::vector<Engine::Row> Engine::order_rows(std::span<const Feed> feeds) const {
  std::vector<Row> rows;
  for (size_t f = 0; f < feeds.size(); ++f)
    for (int32_t token : feeds[f].rows) rows.push_back({f, token, rows.size()});
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return a.feed != b.feed ? a.feed < b.feed : a.token != b.token ? a.token < b.token : a.out < b.out;
  });
  return rows;
}

// Cuts the feeds, in order, into runs that keep within the most tokens, rows and sequences.
void Engine::run_all(std::span<const Feed> feeds, float* logits) {
  const std::vector<Row> rows = order_rows(feeds);
  auto row = rows.begin();
  batch_.clear();
  for (size_t f = 0; f < feeds.size(); ++f) {
    const Session* session = feeds[f].session;
    for (size_t token = 0; token < feeds[f].ids.size(); ++token) {
      const auto is_wanted = [&] {
        return row != rows.end() && row->feed == f && row->token == static_cast<int32_t>(token);
      };
      const bool joins = !batch_.sessions.empty() && batch_.sessions.back() == session;
      if (static_cast<int64_t>(batch_.ids.size()) == most_tokens_ ||
          (is_wanted() && static_cast<int64_t>(batch_.rows.size()) == most_rows_) ||
          (!joins && static_cast<int64_t>(batch_.sessions.size()) == most_sequences_))
        run_batch(logits);
      if (batch_.sessions.empty() || batch_.sessions.back() != session) batch_.sessions.push_back(session);
      // A row that is asked for twice is computed once.
      if (is_wanted()) batch_.rows.push_back(static_cast<int32_t>(batch_.ids.size()));
      for (; is_wanted(); ++row) batch_.gives.push_back({batch_.rows.size() - 1, row->out});
      batch_.ids.push_back(feeds[f].ids[token]);
      batch_.positions.push_back(static_cast<int32_t>(session->length_ + static_cast<int64_t>(token)));
      batch_.sequences.push_back(static_cast<int32_t>(batch_.sessions.size() - 1));
    }
  }
  if (!batch_.ids.empty()) run_batch(logits);
}

void Engine::Batch::clear() {
  sessions.clear();
  ids.clear();
  positions.clear();
  sequences.clear();
  rows.clear();
  gives.clear();
}

// The page tables of the batch, a line per session; returns the length of a line.
int64_t Engine::fill_tables() {
  size_t most = 0;
  for (const Session* session : batch_.sessions) most = std::max(most, session->pages_.size());
  const Dim& dim = program_->plan().dims[serving_.p];
  const int64_t width = table_width(static_cast<int64_t>(most), dim.smallest, dim.largest);
  tables_.assign(batch_.sessions.size() * static_cast<size_t>(width), -1);
  for (size_t s = 0; s < batch_.sessions.size(); ++s) {
    const std::vector<int32_t>& pages = batch_.sessions[s]->pages_;
    std::copy(pages.begin(), pages.end(), tables_.begin() + static_cast<int64_t>(s) * width);
  }
  return width;
}

void Engine::run_batch(float* logits) {
  if (batch_.rows.empty() && program_->plan().dims[serving_.r].smallest > 0) batch_.rows.push_back(0);
  const int64_t width = fill_tables();
  View inputs[Serving::n_inputs];
  const auto give = [&](Serving::Input i, std::vector<int32_t>& numbers) {
    View& view = inputs[serving_.input[i]];
    view.data = numbers.data();
    view.dtype = DType::i32;
    view.rank = 1;
    view.shape[0] = static_cast<int64_t>(numbers.size());
  };
  give(Serving::ids, batch_.ids);
  give(Serving::positions, batch_.positions);
  give(Serving::sequences, batch_.sequences);
  give(Serving::rows, batch_.rows);
  give(Serving::pages, tables_);
  View& tables = inputs[serving_.input[Serving::pages]];
  tables.rank = 2;
  tables.shape[0] = static_cast<int64_t>(batch_.sessions.size());
  tables.shape[1] = width;

  View made;
  program_->run(inputs, std::span(&made, 1), cancel_);
  const auto vocab = static_cast<size_t>(serving_.vocab);
  for (const auto& [from, to] : batch_.gives)
    std::memcpy(logits + to * vocab, made.as<float>() + from * vocab, vocab * sizeof(float));
  batch_.clear();
}

}  // namespace tv
