#include "device/cuda/dnn_search.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
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

#include "device/cuda/dnn_frontend.h"
#include "device/cuda/stopwatch.h"
#include "device/device.h"
#include "device/error.h"
#include "device/graph.h"
#include "device/memory.h"

namespace encore::device {
namespace {

using Clock = std::chrono::steady_clock;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;
using NativePlan = std::shared_ptr<fe::ExecutionPlan>;

constexpr double kNever = std::numeric_limits<double>::infinity();

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// How far a search goes. ENCORE_CONV_SEARCH=threads=8,candidates=24,... sets it otherwise, for who measures searches;
// with report=1 they are told on stderr.
struct Limits {
  int threads = int(std::clamp(std::thread::hardware_concurrency(), 1u, 8u));
  int helpers = 4;  // threads at one problem
  int candidates = 24;
  // Behind the first ones are some that give grouped convolutions misaligned addresses.
  int grouped = 8;
  int least = 8, slow_ms = 100;  // not more than so many if building them takes longer
  int patience = 6;              // candidates in a row that bring nothing
  int report = 0;

  static Limits current() {
    Limits limits;
    const char* const given = std::getenv("ENCORE_CONV_SEARCH");
    std::string_view rest(given ? given : "");
    const std::pair<std::string_view, int*> known[] = {{"threads", &limits.threads},       {"helpers", &limits.helpers},
                                                       {"candidates", &limits.candidates}, {"grouped", &limits.grouped},
                                                       {"least", &limits.least},           {"slow_ms", &limits.slow_ms},
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

fe::DataType_t type_of(const Convolution& p) {
  switch (p.type) {
    case Type::f32: return fe::DataType_t::FLOAT;
    case Type::f16: return fe::DataType_t::HALF;
    case Type::bf16: return fe::DataType_t::BFLOAT16;
    default: fail(Code::not_supported, describe(p), ": no such type in cuDNN");
  }
}

std::vector<int64_t> packed(const std::vector<int64_t>& dims, bool channels_last) {
  std::vector<int64_t> strides(dims.size());
  int64_t step = 1;
  const auto take = [&](size_t i) {
    strides[i] = step;
    step *= dims[i];
  };
  if (channels_last) take(1);
  for (size_t i = dims.size(); i-- > 2;) take(i);
  if (!channels_last) take(1);
  take(0);
  return strides;
}

size_t bytes_of(const std::vector<int64_t>& dims, Type type) {
  size_t bytes = size_bytes(type);
  for (const int64_t size : dims) bytes *= size_t(size);
  return bytes;
}

std::vector<int64_t> ids_of(const Convolution& p, bool fused) {
  std::vector<int64_t> ids{kConvolutionX, kConvolutionW};
  if (fused && p.has_residual) ids.push_back(kResidual);
  if (fused && p.has_bias) ids.push_back(kBias);
  ids.push_back(kConvolutionY);
  return ids;
}

// The candidates for a problem in the heuristics' order, built one by one.
class Candidates : fe::graph::Graph {
 public:
  // Throws std::exception with the frontend's words if no engine does it.
  Candidates(cudnnHandle_t handle, const DnnHandle& dnn, const Convolution& p, bool fused, bool deterministic) {
    const DnnSettings& settings = dnn.settings;
    const fe::DataType_t type = type_of(p);
    set_io_data_type(type)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    set_sm_version(dnn.sm_version);  // else the frontend would ask a CUDA runtime of its own

    // cuDNN wants at least two spatial dimensions.
    const auto widened = [&](std::vector<int64_t> values, int64_t neutral) {
      if (p.x.size() == 3) values.insert(values.end() - (settings.lines_are_rows ? 1 : 0), neutral);
      return values;
    };
    const auto input = [&](ConvolutionId id, const char* name, const std::vector<int64_t>& dims) {
      return tensor(fe::graph::Tensor_attributes()
                        .set_name(name)
                        .set_uid(id)
                        .set_dim(dims)
                        .set_stride(packed(dims, p.channels_last))
                        .set_data_type(type));
    };
    const std::vector<int64_t> y_dims = widened(p.y, 1);
    const auto shaped = [&](Tensor made) {
      made->set_dim(y_dims).set_stride(packed(y_dims, p.channels_last));
      return made;
    };
    const auto with_shape = [&](auto attributes) {
      attributes.set_pre_padding(widened(p.pads_begin, 0))
          .set_post_padding(widened(p.pads_end, 0))
          .set_stride(widened(p.strides, 1))
          .set_dilation(widened(p.dilations, 1));
      return attributes;
    };
    const auto mode = [](fe::PointwiseMode_t what) { return fe::graph::Pointwise_attributes().set_mode(what); };

    const Tensor x = input(kConvolutionX, "x", widened(p.x, 1)), w = input(kConvolutionW, "w", widened(p.w, 1));
    Tensor last = shaped(p.transposed ? conv_dgrad(x, w, with_shape(fe::graph::Conv_dgrad_attributes()))
                                      : conv_fprop(x, w, with_shape(fe::graph::Conv_fprop_attributes())));
    if (fused) {  // in the order for which cuDNN has compiled engines
      if (p.has_residual)
        last = shaped(pointwise(last, input(kResidual, "residual", y_dims), mode(fe::PointwiseMode_t::ADD)));
      if (p.has_bias) {
        std::vector<int64_t> dims(y_dims.size(), 1);
        dims[1] = y_dims[1];
        last = shaped(pointwise(last, input(kBias, "bias", dims), mode(fe::PointwiseMode_t::ADD)));
      }
      if (p.relu) last = shaped(pointwise(last, mode(fe::PointwiseMode_t::RELU_FWD)));
    }
    last->set_name("y").set_uid(kConvolutionY).set_output(true).set_data_type(type);

    check(validate());
    check(build_operation_graph(handle));
    std::vector<fe::HeurMode_t> modes{fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK};
    if (settings.search == DnnSearch::standard) std::reverse(modes.begin(), modes.end());
    check(create_execution_plans(modes));
    std::vector<fe::NumericalNote_t> unwanted;
    if (deterministic) unwanted.push_back(fe::NumericalNote_t::NONDETERMINISTIC);
    if (p.type == device::Type::f32) {
      unwanted.push_back(fe::NumericalNote_t::DOWN_CONVERT_INPUTS);
      if (!p.tf32) unwanted.push_back(fe::NumericalNote_t::TENSOR_CORE);
    }
    deselect_numeric_notes(unwanted).deselect_workspace_greater_than(
        int64_t(std::min<size_t>(settings.most_workspace_bytes, std::numeric_limits<int64_t>::max())));
    check(check_support());
  }

  int64_t count() const { return get_execution_plan_count(); }
  // Null if there is none. What the graph was made with need not live as long as the plan.
  NativePlan build(int64_t candidate) {
    if (build_plan_at_index(candidate).is_bad()) return nullptr;
    return std::move(plans.get_execution_plans()[size_t(candidate)]);
  }
};

// Timings are taken one after another in the whole process.
std::mutex& quiet() {
  static std::mutex mutex;
  return mutex;
}

// Where a thread times plans: a handle, a stream and memory of its own.
class Bench {
 public:
  Bench(cudnnHandle_t handle, const DnnSettings& settings, int device)
      : handle_(handle), settings_(settings), side_(device) {
    if (fe::detail::set_stream(handle_, native()) != CUDNN_STATUS_SUCCESS)
      fail(Code::device_failed, "cuDNN does not take a stream");
  }
  ~Bench() {
    try {
      side_.ref().synchronize();
    } catch (const Error&) {  // whoever runs next is told
    }
    fe::detail::set_stream(handle_, nullptr);
  }
  Bench(const Bench&) = delete;

  // Nothing if the plan does not run, or there is no memory for it.
  std::optional<double> glance(const Convolution& problem, const ConvolutionPlan& plan) {
    cuda::Stopwatch watch;
    return timed(problem, plan, [&](const auto& run) {
      const double first = watch.glance(native(), run);  // other threads' first runs may be in the way of one
      return std::min(first, watch.glance(native(), run));
    });
  }
  std::optional<double> measure(const Convolution& problem, const ConvolutionPlan& plan, double about) {
    cuda::Stopwatch watch;
    return timed(problem, plan, [&](const auto& run) { return watch.measure(native(), about, run); });
  }
  // Whether there is memory for the problem's tensors.
  bool has_room(const Convolution& problem) {
    return inputs_.holds(*this, input_bytes(problem)) && output_.holds(*this, bytes_of(problem.y, problem.type));
  }
  void let_go() {
    side_.ref().synchronize();
    inputs_ = output_ = workspace_ = {};
  }

  double load_s = 0, time_s = 0;  // spent in first runs, and in timing

 private:
  struct Block {
    std::shared_ptr<void> memory;
    size_t bytes = 0;
    bool holds(Bench& bench, size_t wanted) {
      if (wanted <= bytes) return true;
      bench.side_.ref().synchronize();
      memory.reset(), bytes = 0;
      try {
        memory = bench.settings_.memory(wanted);
      } catch (const Error& error) {
        if (error.code() != Code::out_of_memory) throw;
        return false;
      }
      bytes = wanted;
      fill(bench.side_, memory.get(), 0x2c, bytes);  // small numbers in every type
      return true;
    }
  };

  static size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }
  static size_t input_bytes(const Convolution& p) {
    return aligned(bytes_of(p.x, p.type)) + aligned(bytes_of(p.w, p.type)) + aligned(bytes_of(p.y, p.type)) +
           aligned(bytes_of({p.y[1]}, p.type));
  }
  cudaStream_t native() const { return static_cast<cudaStream_t>(side_.ref().native()); }

  template <class F>
  std::optional<double> timed(const Convolution& p, const ConvolutionPlan& plan, F time) {
    if (!has_room(p)) return std::nullopt;
    std::vector<void*> addresses;
    char* next = static_cast<char*>(inputs_.memory.get());
    for (const int64_t id : plan.ids) {
      addresses.push_back(id == kConvolutionY ? output_.memory.get() : next);
      next += aligned(id == kConvolutionX   ? bytes_of(p.x, p.type)
                      : id == kConvolutionW ? bytes_of(p.w, p.type)
                      : id == kResidual     ? bytes_of(p.y, p.type)
                                            : bytes_of({p.y[1]}, p.type));
    }
    constexpr size_t kMuch = size_t{64} << 20;  // not in every thread at a time
    std::unique_lock alone(quiet(), std::defer_lock);
    if (plan.workspace_bytes() > kMuch) alone.lock();
    if (plan.workspace_bytes() && !workspace_.holds(*this, plan.workspace_bytes())) return std::nullopt;
    const auto run = [&] { return !execute(handle_, plan, addresses, workspace_.memory.get()); };
    const auto begin = Clock::now();
    if (!run()) return std::nullopt;  // that loads the kernel, too
    side_.ref().synchronize();
    load_s += seconds_since(begin);
    if (!alone) alone.lock();
    const auto start = Clock::now();
    const double us = time(run);
    time_s += seconds_since(start);
    if (workspace_.bytes > kMuch) workspace_ = {};
    return us;
  }

  const cudnnHandle_t handle_;
  const DnnSettings& settings_;
  Stream side_;
  Block inputs_, output_, workspace_;
};

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
  Search(DnnHandle& dnn, std::vector<ConvolutionSearch>& searches) : dnn_(dnn), searches_(searches) {}

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
          const bool alone = !p.has_bias && !p.has_residual && !p.relu;
          if (round == 0 && !second) add(search, alone || first, true);
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
    const bool whole = fused || (!search.problem->has_bias && !search.problem->has_residual && !search.problem->relu);
    const Convolution& p = *search.problem;
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
    fe::detail::set_stream(dnn_.handle, nullptr);
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
      if (!known.plan.empty() && fe::detail::create_cudnn_execution_plan(plan, known.plan, handle).is_bad())
        plan = nullptr;
      if (!plan) {
        Candidates candidates(handle, dnn_, *search.problem, known.fused, known.deterministic);
        if (known.candidate < candidates.count()) plan = candidates.build(known.candidate);
        if (plan && plan->getTag() != known.engine) plan = nullptr;
      }
    } catch (const std::exception&) {  // then it is searched anew
      plan = nullptr;
    }
    if (!plan || size_t(plan->getWorkspaceSize()) > dnn_.settings.most_workspace_bytes) return;
    search.plan = std::make_unique<ConvolutionPlan>(
        ConvolutionPlan{std::move(plan), ids_of(*search.problem, known.fused), known});
    search.taken_over = true;
  }

  void work_all() {
    if (jobs_.empty()) return;
    const bool measures = dnn_.settings.measures();
    in_threads(jobs_.size() * size_t(measures ? limits_.helpers : 1), [&](cudnnHandle_t handle) {
      std::optional<Bench> bench;
      if (measures) bench.emplace(handle, dnn_.settings, dnn_.device);
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
      const int64_t most =
          bench ? (job.problem->groups == 1 ? limits_.candidates : limits_.grouped) : candidates.count();
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

  // The next candidate; below zero if none is to be tried.
  int64_t take(Job& job, int64_t count) {
    const std::lock_guard lock(mutex_);
    if (job.next == 0) job.begin = Clock::now();
    const bool slow = job.next >= limits_.least && seconds_since(job.begin) * 1e3 > limits_.slow_ms;
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
        job.serialized = job.built[0].plan->getJsonRepresentation();
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
      tuned.engine = found.plan->getTag();
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
  std::mutex mutex_;  // of what follows, and of jobs that several work at
  std::deque<Job> jobs_;
  bool large_in_work_ = false;
  std::exception_ptr error_;
  double heuristics_s_ = 0, build_s_ = 0, load_s_ = 0, time_s_ = 0;
  std::atomic<int> built_{0};
  size_t ran_ = 0;
};

}  // namespace

size_t ConvolutionPlan::workspace_bytes() const { return size_t(native->getWorkspaceSize()); }

std::optional<std::string> execute(cudnnHandle_t handle, const ConvolutionPlan& plan, std::vector<void*>& addresses,
                                   void* workspace) {
  const fe::error_t result = fe::detail::execute(handle, plan.native.get(), addresses, plan.ids, workspace);
  return result.is_good() ? std::nullopt : std::optional(result.err_msg);
}

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

void find_plans(DnnHandle& dnn, std::vector<ConvolutionSearch>& searches) { Search(dnn, searches).run(); }

}  // namespace encore::device
