// Programs of some parts of nvidia.py for a simulated device: what gpu_load, train_exact.py and
// serve.py do on NVIDIA GPUs. A rank that waits for another one in a collective runs kernels
// meanwhile, as NCCL's kernels spin.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/client.hpp"
#include "sluice/sim/nvidia_client.hpp"

namespace {

using namespace std::chrono_literals;
using sluice::clock;
using sluice::duration;

constexpr char help[] =
    "usage: simulated_load train STEPS PAGE LOSSES BOARD   (as train_exact.py)\n"
    "       simulated_load serve                           (as serve.py)\n"
    "       simulated_load serve BOARD                     (as gang_serve.py)\n"
    "       simulated_load offline --page PAGE [--devices A,B,...] [--streams N]   (as gpu_load)\n"
    "       simulated_load online --seconds T                                      (as gpu_load)\n"
    "\n"
    "CUDA_VISIBLE_DEVICES is the index of the GPU (default: 0), RANK the rank of two.\n"
    "offline runs kernels without end in each stream, and counts them in PAGE.\n"
    "Other options of gpu_load have no effect.\n";

constexpr duration patience = 60s;
constexpr std::uint64_t ranks = 2;

/// Words of a page, as in tests/gpu/nvidia.py.
enum page_word : std::size_t { steps_made, pause_wanted = 17, paused, last_step, bits = 24, ended };
/// Words of the page that ranks share, as in train_exact.py and gang_serve.py.
enum board_word : std::size_t {
  pause_at,
  requests_made,
  scheduler_named,
  scheduler_known,
  first_arrival = 16,
  first_value = 32,
  scheduler_name = 256
};

class shared_page {
 public:
  explicit shared_page(const std::string& path, std::size_t bytes = 4096) {
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    void* const mapped =
        fd < 0 ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) throw std::runtime_error{"cannot map " + path};
    close(fd);
    words_ = static_cast<std::uint64_t*>(mapped);
  }
  std::uint64_t get(std::size_t word) const {
    return __atomic_load_n(words_ + word, __ATOMIC_ACQUIRE);
  }
  void set(std::size_t word, std::uint64_t value) {
    __atomic_store_n(words_ + word, value, __ATOMIC_RELEASE);
  }
  char* text(std::size_t word) { return reinterpret_cast<char*>(words_ + word); }  // NOLINT
  void* bytes() { return words_; }

 private:
  std::uint64_t* words_ = nullptr;  // Mapped until the program ends.
};

std::uint64_t of_environment(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}
std::uint64_t own_rank() { return of_environment("RANK"); }

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(clock::now().time_since_epoch().count());
}

std::unique_ptr<sluice::sim::nvidia_client> open_gpus(std::vector<std::uint32_t> indices) {
  auto client = sluice::sim::nvidia_client::open({.device = {}, .gpus = std::move(indices)});
  if (!client) throw std::runtime_error{"cannot open the GPUs: " + client.error().message()};
  return std::move(*client);
}

/// Its kernels must each run exactly once.
class stream {
 public:
  /// \param gpu the driver's gpu_id; 0: the first GPU.
  explicit stream(sluice::sim::nvidia_client& on, std::uint32_t gpu = 0) : slots_(on.wave_slots()) {
    auto queue = on.create_queue({.gpu = gpu});
    if (!queue) throw std::runtime_error{"cannot make a queue: " + queue.error().message()};
    queue_ = std::move(*queue);
  }
  void run(duration length) {
    const auto index = queue_->submit({.length = length, .waves = slots_});
    if (!index) throw std::runtime_error{"a kernel was refused: " + index.error().message()};
    queue_->ring();
    const auto done = queue_->wait(*index, patience);
    if (!done) throw std::runtime_error{"a kernel did not end: " + done.error().message()};
    if (queue_->completion(*index).value != 0)
      throw std::runtime_error{"a kernel did not run exactly once"};
  }

 private:
  std::uint32_t slots_;
  std::unique_ptr<sluice::sim::gpu_queue> queue_;
};

/// The GPU of this program.
class gpu {
 public:
  void run(duration length) { stream_.run(length); }

 private:
  std::unique_ptr<sluice::sim::nvidia_client> client_ =
      open_gpus({static_cast<std::uint32_t>(of_environment("CUDA_VISIBLE_DEVICES"))});
  stream stream_{*client_};
};

/// All-reduce: the sum of a value of each rank. All call it equally often.
class collective {
 public:
  collective(gpu& on, shared_page& board) : on_(on), board_(board) {}
  std::uint64_t sum(std::uint64_t value) {
    constexpr duration spin = 50us;
    ++calls_;
    // The other rank is at most one call ahead.
    const auto place = [this](std::uint64_t rank) { return first_value + 2 * rank + calls_ % 2; };
    board_.set(place(own_rank()), value);
    board_.set(first_arrival + own_rank(), calls_);
    std::uint64_t total = 0;
    for (std::uint64_t rank = 0; rank < ranks; ++rank) {
      while (board_.get(first_arrival + rank) < calls_) on_.run(spin);
      total += board_.get(place(rank));
    }
    return total;
  }

 private:
  gpu& on_;
  shared_page& board_;
  std::uint64_t calls_ = 0;
};

[[noreturn]] void rest() {
  for (;;) pause();
}

int train(std::uint64_t steps, const std::string& page_path, const std::string& losses_path,
          const std::string& board_path) {
  constexpr std::size_t most_losses = (std::size_t{1} << 20) / sizeof(float);
  constexpr int kernels = 4;
  constexpr duration length = 1ms;
  shared_page page{page_path};
  shared_page losses{losses_path, most_losses * sizeof(float)};
  shared_page board{board_path};
  gpu on;
  collective all{on, board};
  std::uint64_t state = 1;
  for (std::uint64_t step = 1; steps == 0 || step <= steps; ++step) {
    if (own_rank() == 0 && page.get(pause_wanted) != 0 && board.get(pause_at) == 0)
      board.set(pause_at, step + 2);  // No rank has begun that one.
    if (board.get(pause_at) == step) {
      page.set(paused, 1);
      while (own_rank() == 0 && page.get(pause_wanted) != 0) std::this_thread::sleep_for(1ms);
      if (own_rank() == 0) board.set(pause_at, 0);
      while (board.get(pause_at) == step) std::this_thread::sleep_for(1ms);
      page.set(paused, 0);
    }
    for (int i = 0; i < kernels; ++i) on.run(length);
    state = all.sum((state ^ step) * (own_rank() + 3)) * 0x9e3779b97f4a7c15;
    if (step <= most_losses) {
      const float loss = static_cast<float>(state >> 40) / static_cast<float>(1 << 24);
      std::memcpy(static_cast<char*>(losses.bytes()) + (step - 1) * sizeof loss, &loss,
                  sizeof loss);
    }
    page.set(steps_made, step);
    page.set(last_step, now_ns());
  }
  page.set(bits, state);
  page.set(ended, 1);
  rest();
}

/// Announces requests, while a scheduler is named.
class announcer {
 public:
  void connect(const std::string& socket) {
    client_.reset();
    if (socket == "-") return;
    sluice::client::options how{.socket = socket, .name = "simulated_load"};
    if (const auto on = of_environment("SLUICE_CLIENT_GPUS"); on != 0)
      how.gpus.push_back(static_cast<std::uint32_t>(on));
    std::error_code error;
    client_.emplace(sluice::client::connection::open(how, error));
    if (error) throw std::runtime_error{"cannot make a client: " + error.message()};
    for (const auto until = clock::now() + patience; !client_->status().connected;) {
      if (clock::now() > until) throw std::runtime_error{"no connection to " + socket};
      std::this_thread::sleep_for(1ms);
    }
  }
  void begin() {
    if (client_) client_->begin();
  }
  void end() {
    if (client_) client_->end();
  }

 private:
  std::optional<sluice::client::connection> client_;
};

class server {
 public:
  explicit server(const std::string& board_path) {
    if (board_path.empty()) return;
    board_.emplace(board_path);
    all_.emplace(on_, *board_);
  }
  [[noreturn]] void follow() {
    for (std::uint64_t made = 0, named = 0;;) {
      if (board_->get(scheduler_named) != named) {
        named = board_->get(scheduler_named);
        marks_.connect(board_->text(scheduler_name));
        board_->set(scheduler_known, named);
      }
      if (board_->get(requests_made) == made) {
        std::this_thread::sleep_for(20us);
        continue;
      }
      ++made;
      answer(made);
    }
  }
  int lead() {
    std::vector<std::uint64_t> lengths;
    for (int i = 0; i < 5; ++i) {
      const auto begin = now_ns();
      request(true);
      lengths.push_back(now_ns() - begin);
    }
    std::sort(lengths.begin(), lengths.end());
    std::cout << R"({"alone_us": )" << static_cast<double>(lengths[2]) / 1e3 << "}" << std::endl;
    for (std::string line; std::getline(std::cin, line);) {
      std::istringstream words{line};
      std::string order;
      words >> order;
      if (order == "mark") {
        std::string socket;
        words >> socket;
        name(socket);
        std::cout << "{}" << std::endl;
      } else {
        std::string arrivals;
        std::string log;
        double limit_us = 0;
        words >> arrivals >> limit_us >> log;
        std::cout << R"({"requests": )" << play(arrivals, limit_us, log) << "}" << std::endl;
      }
    }
    return 0;
  }

 private:
  static constexpr int layers = 8;
  void request(bool counts) {
    if (board_ && counts && own_rank() == 0)
      board_->set(requests_made, board_->get(requests_made) + 1);
    for (int layer = 0; layer < layers; ++layer) {
      on_.run(500us);
      if (all_) all_->sum(1);
    }
  }
  /// One that the first rank has begun. It came to one of the ranks, in turn.
  void answer(std::uint64_t number) {
    const bool own = number % ranks == own_rank();
    if (own) marks_.begin();
    request(false);
    if (own) marks_.end();
  }
  void name(const std::string& socket) {
    marks_.connect(socket);
    if (!board_) return;
    std::strcpy(board_->text(scheduler_name), socket.c_str());  // NOLINT: a path fits the page.
    board_->set(scheduler_named, board_->get(scheduler_named) + 1);
    while (board_->get(scheduler_known) != board_->get(scheduler_named))
      std::this_thread::sleep_for(1ms);
  }
  std::size_t play(const std::string& arrivals, double limit_us, const std::string& log) {
    std::ifstream from{arrivals};
    std::ofstream to{log};
    const std::uint64_t start = now_ns() + 5000000;
    const auto until = start + static_cast<std::uint64_t>(1e3 * limit_us);
    std::size_t made = 0;
    for (std::uint64_t offset = 0; from >> offset; ++made) {
      const std::uint64_t due = start + offset;
      if (const auto now = now_ns(); now < due)
        std::this_thread::sleep_for(std::chrono::nanoseconds(due - now));
      const std::uint64_t begin = now_ns();
      if (begin > until) break;
      if (board_) {
        board_->set(requests_made, board_->get(requests_made) + 1);
        answer(board_->get(requests_made));
      } else {
        marks_.begin();
        request(false);
        marks_.end();
      }
      to << due << ' ' << begin << ' ' << now_ns() << '\n';
    }
    return made;
  }

  gpu on_;
  std::optional<shared_page> board_;
  std::optional<collective> all_;
  announcer marks_;
};

std::string option(const std::vector<std::string>& words, const std::string& name,
                   const std::string& usual) {
  const auto found = std::find(words.begin(), words.end(), name);
  return found == words.end() || found + 1 == words.end() ? usual : *(found + 1);
}

[[noreturn]] void offline(const std::vector<std::string>& words) {
  shared_page page{option(words, "--page", "")};
  const auto streams = std::stoull(option(words, "--streams", "1"));
  std::vector<std::uint32_t> indices;
  std::istringstream devices{option(words, "--devices", "0")};
  for (std::string device; std::getline(devices, device, ',');)
    indices.push_back(static_cast<std::uint32_t>(std::stoul(device)));
  const auto client = open_gpus(std::move(indices));
  std::vector<std::unique_ptr<stream>> all;
  for (const auto gpu : client->gpus())
    for (std::uint64_t i = 0; i < streams; ++i)
      all.push_back(std::make_unique<stream>(*client, gpu));
  std::atomic<std::size_t> resting = 0;
  const auto work = [&](std::size_t number) {
    for (std::uint64_t made = 1;; ++made) {
      if (page.get(pause_wanted) != 0) {
        if (++resting == all.size()) page.set(paused, 1);
        while (page.get(pause_wanted) != 0) std::this_thread::sleep_for(1ms);
        page.set(paused, 0);
        --resting;
      }
      all[number]->run(1ms);
      page.set(number, made);
      page.set(last_step, now_ns());
    }
  };
  // What one of them throws ends the program.
  for (std::size_t number = 1; number < all.size(); ++number) std::thread{work, number}.detach();
  work(0);
  rest();
}

int online(double seconds) {
  gpu on;
  std::vector<std::uint64_t> lengths;
  for (const auto until = now_ns() + static_cast<std::uint64_t>(1e9 * seconds); now_ns() < until;) {
    const auto begin = now_ns();
    on.run(65us);
    lengths.push_back(now_ns() - begin);
  }
  std::sort(lengths.begin(), lengths.end());
  const auto us = [&](std::size_t percent) {
    return static_cast<double>(lengths[(lengths.size() - 1) * percent / 100]) / 1e3;
  };
  std::cout << R"({"n": )" << lengths.size() << R"(, "p50_us": )" << us(50) << R"(, "p99_us": )"
            << us(99) << R"(, "max_us": )" << us(100) << "}" << std::endl;
  return 0;
}

int run(const std::vector<std::string>& words) {
  const std::string verb = words.empty() ? "" : words.front();
  if (verb == "train" && words.size() == 5)
    return train(std::stoull(words[1]), words[2], words[3], words[4]);
  if (verb == "serve" && words.size() <= 2) {
    server made{words.size() == 2 ? words[1] : ""};
    if (own_rank() != 0) made.follow();
    return made.lead();
  }
  if (verb == "offline") offline(words);
  if (verb == "online") return online(std::stod(option(words, "--seconds", "1")));
  std::cerr << help;
  return verb == "--help" ? 0 : 2;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << "simulated_load: " << error.what() << '\n';
    return 1;
  }
}
