#include "device/cuda/dnn_search.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <functional>
#include <limits>
#include <mutex>
#include <numeric>
#include <string_view>
#include <system_error>
#include <thread>

#include "device/cuda/dnn_bench.h"
#include "device/cuda/dnn_candidates.h"
#include "device/device.h"
#include "device/error.h"
#include "device/graph.h"

namespace encore::device {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// How far a search goes. ENCORE_CONV_SEARCH=threads=8,candidates=24,... sets it otherwise, for who measures searches;
// with report=1 they are told on stderr.
struct Limits {
  int threads = int(std::clamp(std::thread::hardware_concurrency(), 1u, 8u));
  int helpers = 4;  // threads at one problem
  int candidates = 24;
  // Behind the first ones are some that give grouped convolutions misaligned addresses.
  int grouped = 8;
  int curved = 1;                // of those that end with a curve, for each of which cuDNN compiles a kernel
  int least = 8, slow_ms = 100;  // not more than so many if building them takes longer
  int compiled = 5;              // the same of those that cuDNN compiles
  int patience = 6;              // candidates in a row that bring nothing
  int report = 0;

  static Limits current() {
    Limits limits;
    const char* const given = std::getenv("ENCORE_CONV_SEARCH");
    std::string_view rest(given ? given : "");
    const std::pair<std::string_view, int*> known[] = {{"threads", &limits.threads},       {"helpers", &limits.helpers},
                                                       {"candidates", &limits.candidates}, {"grouped", &limits.grouped},
                                                       {"curved", &limits.curved},         {"least", &limits.least},
                                                       {"compiled", &limits.compiled},     {"slow_ms", &limits.slow_ms},
                                                       {"patience", &limits.patience},     {"report", &limits.report}};
    while (!rest.empty()) {
      const std::string_view pair = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(pair.size() + 1, rest.size()));
      const size_t equal = pair.find('=');
      for (const auto& [name, into] : known)
        if (equal != std::string_view::npos && pair.substr(0, equal) == name)
          std::from_chars(pair.data() + equal + 1, pair.data() + pair.size(), *into);
    }
    limits.threads = std::clamp(limits.threads, 1, 64);
    limits.helpers = std::max(limits.helpers, 1);
    return limits;
  }
};

// Whether cuDNN would compile a kernel for what a matrix product does, with the activation or without.
bool compiles_in_vain(const Convolution& p) {
  const auto are = [](const std::vector<int64_t>& all, int64_t value) {
    return std::ranges::all_of(all, [&](int64_t one) { return one == value; });
  };
  return p.curve > Convolution::Curve::relu && p.groups == 1 && !p.transposed &&
         std::all_of(p.w.begin() + 2, p.w.end(), [](int64_t size) { return size == 1; }) && are(p.strides, 1) &&
         are(p.pads_begin, 0) && are(p.pads_end, 0);
}

// One way to do a problem, by which several threads may work.
struct Job {
  const Convolution* problem;
  ConvolutionSearch* search;
  bool fused, deterministic;
  double rest_us;        // of what is done by another kernel
  Job* rival = nullptr;  // the other way
  int64_t next = 0;      // candidate
  int workers = 0, barren = 0;
  bool closed = false;
  bool large = false;  // only one of these at a time, by one thread: each thread has tensors to time it with
  Clock::time_point begin = {};
  struct Built {
    int64_t candidate;
    NativePlan plan;
    double us;
  };
  std::vector<Built> built;
  int timed = 0;
  double best_us = kNever, first_us = 0;  // without the rest
  std::string failure = {}, serialized = {};
};

class Search {
 public:
  Search(DnnHandle& dnn, std::vector<ConvolutionSearch>& searches, StreamRef stream)
      : dnn_(dnn), searches_(searches), stream_(stream) {}

  void run() {
    take_over();
    const DnnSettings& settings = dnn_.settings;
    // At first what the settings ask for, and both ways where timing is to choose; then what is left.
    const bool both = settings.measures() && !settings.always_fuse;
    const bool first = settings.measures() || settings.always_fuse;
    for (int round = 0; round < 3; ++round) {
      for (const bool second : {false, true})
        for (ConvolutionSearch& search : searches_) {
          if (search.plan) continue;
          const Convolution& p = *search.problem;
          const bool alone = p.is_alone();
          if (round == 0 && !second && !(both && compiles_in_vain(p))) add(search, alone || first, true);
          if (round == 0 && second && both && !alone) add(search, false, true);
          if (round == 1 && !second && !both && !alone) add(search, !first, true);
          if (round == 2 && !second && !settings.deterministic) add(search, alone, false);
        }
      pair();
      work_all();
      settle();
    }
    report();
  }

 private:
  void add(ConvolutionSearch& search, bool fused, bool deterministic) {
    const Convolution& p = *search.problem;
    const bool whole = fused || p.is_alone();
    Job& job = jobs_.emplace_back(&p, &search, fused, deterministic, whole ? 0 : time_of_rest_us(p));
    constexpr size_t kLarge = size_t{64} << 20;
    job.large = bytes_of(p.x, p.type) + bytes_of(p.w, p.type) + 2 * bytes_of(p.y, p.type) > kLarge;
  }
  void pair() {
    for (Job& one : jobs_)
      for (Job& other : jobs_)
        if (&one != &other && one.search == other.search) one.rival = &other;
  }

  // ---- by several threads

  // Calls it in as many threads as are allowed and wanted, each with a handle.
  void in_threads(size_t wanted, const std::function<void(cudnnHandle_t)>& work) {
    const auto guarded = [&](cudnnHandle_t own) noexcept {
      try {
        const Current current(dnn_.device);
        const RelaxedCapture relaxed;  // another stream may be capturing
        const BorrowedHandle other(own ? -1 : dnn_.device);
        const cudnnHandle_t handle = own ? own : other.get();
        if (handle) work(handle);
        cudaGetLastError();
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::current_exception();
      }
    };
    std::vector<std::thread> others;
    try {
      while (others.size() + 1 < std::min(wanted, size_t(limits_.threads))) others.emplace_back(guarded, nullptr);
    } catch (const std::system_error&) {  // then with fewer
    }
    guarded(dnn_.handle);
    for (std::thread& other : others) other.join();
    set_stream(dnn_.handle, nullptr);
    dnn_.stream = {};
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

  // What earlier searches found need not be searched.
  void take_over() {
    size_t known = 0;
    for (const ConvolutionSearch& search : searches_) known += search.known.has_value();
    if (known == 0) return;
    std::atomic<size_t> next{0};
    in_threads((known + 3) / 4, [&](cudnnHandle_t handle) {
      for (size_t i; (i = next++) < searches_.size();)
        if (searches_[i].known) take_over(handle, searches_[i]);
    });
  }
  void take_over(cudnnHandle_t handle, ConvolutionSearch& search) const {
    const TunedConvolution& known = *search.known;
    NativePlan plan;
    try {
      if (!known.plan.empty()) plan = read_plan(handle, known.plan);
      if (!plan) {
        Candidates candidates(handle, dnn_, *search.problem, known.fused, known.deterministic);
        if (known.candidate < candidates.count()) plan = candidates.build(known.candidate);
        if (plan && engine_of(plan) != known.engine) plan = nullptr;
      }
    } catch (const std::exception&) {  // then it is searched anew
      plan = nullptr;
    }
    if (!plan) return;
    auto found = std::make_unique<ConvolutionPlan>(
        ConvolutionPlan{std::move(plan), ids_of(*search.problem, known.fused), known});
    if (found->workspace_bytes() > dnn_.settings.most_workspace_bytes) return;
    search.plan = std::move(found);
    search.taken_over = true;
  }

  void work_all() {
    if (jobs_.empty()) return;
    const bool measures = dnn_.settings.measures();
    in_threads(jobs_.size() * size_t(measures ? limits_.helpers : 1), [&](cudnnHandle_t handle) {
      std::optional<Bench> bench;
      if (measures) bench.emplace(handle, dnn_.settings, stream_);
      while (Job* const job = join(measures ? limits_.helpers : 1)) {
        work(*job, handle, bench ? &*bench : nullptr);
        leave(*job, bench ? &*bench : nullptr);
      }
      if (!bench) return;
      const std::lock_guard lock(mutex_);
      load_s_ += bench->load_s;
      time_s_ += bench->time_s;
    });
  }

  // The job with the fewest workers; null if nobody can help any more.
  Job* join(int most) {
    const std::lock_guard lock(mutex_);
    if (error_) return nullptr;
    Job* best = nullptr;
    for (Job& job : jobs_)
      if (!job.closed && (job.large ? !large_in_work_ : job.workers < most) && (!best || job.workers < best->workers))
        best = &job;
    if (!best) return nullptr;
    ++best->workers;
    large_in_work_ |= best->large;
    return best;
  }

  void work(Job& job, cudnnHandle_t handle, Bench* bench) {
    try {
      if (bench && !bench->has_room(*job.problem)) bench = nullptr;  // the heuristics' choice stays
      {
        const std::lock_guard lock(mutex_);
        if (hopeless(job)) job.closed = true;
        if (job.closed) return;
      }
      const auto begin = Clock::now();
      Candidates candidates(handle, dnn_, *job.problem, job.fused, job.deterministic);
      count(heuristics_s_, begin);
      const int64_t most = bench ? most_candidates(job) : candidates.count();
      for (int64_t candidate; (candidate = take(job, std::min(candidates.count(), most))) >= 0;)
        if (!try_candidate(job, candidates, candidate, bench)) break;
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      job.closed = true;
      job.failure = error.what();
    }
  }

  int most_candidates(const Job& job) const {
    const int most = job.problem->groups == 1 ? limits_.candidates : limits_.grouped;
    return job.fused && job.problem->curve > Convolution::Curve::relu ? std::min(most, limits_.curved) : most;
  }

  // The next candidate; below zero if none is to be tried.
  int64_t take(Job& job, int64_t count) {
    const std::lock_guard lock(mutex_);
    if (job.next == 0) job.begin = Clock::now();
    const int least = job.fused && compiles(*job.problem) ? limits_.compiled : limits_.least;
    const bool slow = job.next >= least && seconds_since(job.begin) * 1e3 > limits_.slow_ms;
    if (job.next >= count || (slow && !job.built.empty()) || job.barren >= limits_.patience || hopeless(job) || error_)
      job.closed = true;
    return job.closed ? -1 : job.next++;
  }

  // Nothing that is still to come would be chosen.
  bool hopeless(const Job& job) const {
    if (job.best_us <= 1.1 * least_time_us(*job.problem)) return true;
    if (!job.rival || job.rest_us == 0) return false;
    const double other = job.rival->best_us;
    return job.rest_us + least_time_us(*job.problem) >= other ||
           (job.timed >= 3 && job.best_us + job.rest_us > 1.1 * other);
  }

  // The other way has been found faster.
  bool is_beaten(const Job& job) {
    const std::lock_guard lock(mutex_);
    return job.rival && job.best_us + job.rest_us > 1.1 * (job.rival->best_us + job.rival->rest_us);
  }

  // False once there is no need for another.
  bool try_candidate(Job& job, Candidates& candidates, int64_t candidate, Bench* bench) {
    const auto begin = Clock::now();
    NativePlan plan = candidates.build(candidate);
    count(build_s_, begin);
    ++built_;
    if (!plan) return true;
    std::optional<double> us;
    if (bench) us = bench->glance(*job.problem, {plan, ids_of(*job.problem, job.fused), {}});
    const std::lock_guard lock(mutex_);
    job.built.push_back({candidate, std::move(plan), us.value_or(kNever)});
    if (!bench) job.closed = true;
    if (us) {
      ++job.timed;
      job.barren = *us < 0.98 * job.best_us ? 0 : job.barren + 1;
      job.best_us = std::min(job.best_us, *us);
    }
    return bench != nullptr;
  }

  void leave(Job& job, Bench* bench) {
    {
      const std::lock_guard lock(mutex_);
      if (--job.workers > 0 || !job.closed) return;  // nobody joins one that is closed
    }
    if (!job.built.empty()) {
      compare(job, is_beaten(job) ? nullptr : bench);
      try {
        job.serialized = written(job.built[0].plan);
      } catch (const std::exception&) {  // the candidate's number has to do
      }
    }
    if (!job.large) return;
    if (bench) bench->let_go();
    const std::lock_guard lock(mutex_);
    large_in_work_ = false;
  }

  // The last one to leave compares those that did best for longer.
  void compare(Job& job, Bench* bench) {
    constexpr size_t kFinalists = 3;
    constexpr double kClose = 1.3;
    std::ranges::stable_sort(job.built, {}, &Job::Built::candidate);
    job.first_us = job.built[0].us == kNever ? 0 : job.built[0].us;
    std::ranges::stable_sort(job.built, {}, &Job::Built::us);
    const double limit = kClose * job.built[0].us;
    std::erase_if(job.built, [&](const Job::Built& one) { return one.us > limit; });
    job.built.resize(std::min(job.built.size(), kFinalists));
    if (!bench || job.built.size() == 1 || job.built[0].us == kNever) return;
    for (Job::Built& one : job.built)
      one.us = bench->measure(*job.problem, {one.plan, ids_of(*job.problem, job.fused), {}}, one.us).value_or(kNever);
    std::ranges::stable_sort(job.built, {}, &Job::Built::us);
  }

  // ---- afterwards

  void settle() {
    std::vector<double> best(searches_.size(), kNever);
    for (Job& job : jobs_) {
      ConvolutionSearch& search = *job.search;
      if (job.built.empty()) {
        if (!job.failure.empty())
          search.reasons += text("\n  ", job.fused ? "as one" : "alone", job.deterministic ? "" : ", nondeterministic",
                                 ": ", job.failure);
        continue;
      }
      Job::Built& found = job.built[0];
      double& best_us = best[size_t(&search - searches_.data())];
      const double us = found.us + job.rest_us;
      if (search.plan && us >= best_us) continue;
      best_us = us;
      TunedConvolution tuned;
      tuned.fused = job.rest_us == 0;
      tuned.deterministic = job.deterministic;
      tuned.timed = job.timed;
      tuned.candidate = found.candidate;
      tuned.first_us = float(job.first_us);
      tuned.us = us == kNever ? 0 : float(us);
      tuned.engine = engine_of(found.plan);
      tuned.plan = std::move(job.serialized);
      search.plan = std::make_unique<ConvolutionPlan>(
          ConvolutionPlan{std::move(found.plan), ids_of(*search.problem, tuned.fused), std::move(tuned)});
    }
    ran_ += jobs_.size();
    jobs_.clear();
  }

  void count(double& into, Clock::time_point begin) {
    const std::lock_guard lock(mutex_);
    into += seconds_since(begin);
  }

  void report() const {
    if (!limits_.report) return;
    size_t taken_over = 0, none = 0;
    for (const ConvolutionSearch& search : searches_) taken_over += search.taken_over, none += !search.plan;
    std::fprintf(stderr,
                 "encore: %zu convolutions in %.0f ms by up to %d threads: %zu taken over, %zu without an engine; %zu "
                 "ways, %d plans built; summed over threads: heuristics %.0f ms, building %.0f ms, first runs %.0f ms, "
                 "timing %.0f ms\n",
                 searches_.size(), seconds_since(begin_) * 1e3, limits_.threads, taken_over, none, ran_, int(built_),
                 heuristics_s_ * 1e3, build_s_ * 1e3, load_s_ * 1e3, time_s_ * 1e3);
    if (limits_.report < 2) return;
    for (const ConvolutionSearch& search : searches_)
      if (search.plan)
        std::fprintf(stderr, "  %s: %s, candidate %d of %d timed, %.2f us, the first %.2f us, %s\n",
                     describe(*search.problem).c_str(), search.plan->tuned.fused ? "as one" : "alone",
                     int(search.plan->tuned.candidate), search.plan->tuned.timed, double(search.plan->tuned.us),
                     double(search.plan->tuned.first_us), search.plan->tuned.engine.c_str());
  }

  DnnHandle& dnn_;
  std::vector<ConvolutionSearch>& searches_;
  const Limits limits_ = Limits::current();
  const Clock::time_point begin_ = Clock::now();
  const StreamRef stream_;
  std::mutex mutex_;  // of what follows, and of jobs that several work at
  std::deque<Job> jobs_;
  bool large_in_work_ = false;
  std::exception_ptr error_;
  double heuristics_s_ = 0, build_s_ = 0, load_s_ = 0, time_s_ = 0;
  std::atomic<int> built_{0};
  size_t ran_ = 0;
};

}  // namespace

bool tells_searches() { return Limits::current().report != 0; }

double time_of_rest_us(const Convolution& problem) { return 2 + 2 * double(bytes_of(problem.y, problem.type)) / 3.5e6; }

double least_time_us(const Convolution& p) {
  const double rate = p.type != Type::f32 ? 900e6 : p.tf32 ? 450e6 : 60e6;  // operations in a microsecond
  const std::vector<int64_t>& larger = p.transposed ? p.x : p.y;
  const double products = std::accumulate(larger.begin(), larger.end(), 1.0, std::multiplies<>()) *
                          std::accumulate(p.w.begin() + 1, p.w.end(), 1.0, std::multiplies<>());
  const double bytes = double(bytes_of(p.x, p.type) + bytes_of(p.w, p.type) + bytes_of(p.y, p.type));
  return 1 + std::max(2 * products / rate, bytes / 8e6);  // all of it may be in the L2
}

void find_plans(DnnHandle& dnn, std::vector<ConvolutionSearch>& searches, StreamRef stream) {
  Search(dnn, searches, stream).run();
}

}  // namespace encore::device
