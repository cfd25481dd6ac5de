#pragma once
/// \file
/// What no policy can beat: an upper bound on offline throughput, as a function of the online p99,
/// for somebody who knows every arrival and every kernel in advance.

#include "experiment.hpp"

#include <array>
#include <vector>

namespace sluice::lab {

/// Why no policy beats it at the same p99. A policy can do one thing, suspend and resume offline
/// queues; the server and the offline processes are what they are. Let S be the stretch.
///
/// 1. *Room.* Online kernels run B seconds in S whatever the policy does: every request that is
///    finished has had its tokens' time. So a kernel of full occupancy leaves offline S - B at
///    most, and one of part of the wave slots that part. Offline work is an exact sequence of
///    kernels; of it there is done at most what fits: kernels of one queue one after the other, all
///    of them within the wave slots, steps with the host gaps between them.
/// 2. *Needy requests.* Where no offline kernel fits beside a decode kernel (else this is 0), each
///    host gap between two steps lets offline kernels in while nothing is suspended, and the next
///    step waits for the one that is running, from its begin to its end. A request of g steps that
///    no hold touches therefore takes at least its own GPU time and the shortest g - 1 consecutive
///    kernels of the offline sequence. If that is more than p, some hold overlaps its life, which
///    ends at most p after its arrival.
/// 3. *Between two needy requests* i and j there is then either one hold that covers [arrival of i
/// +
///    p, arrival of j], in which offline gets nothing and the GPU is idle but for the requests that
///    came between the two; or two holds, and the resume and the suspend between them, in which
///    nothing at all runs. The least of both is lost. Along a chain of needy requests these losses
///    are of disjoint times, so they add up; the chain that loses most is taken.
/// 4. *p99 forgives one request in a hundred.* Striking one of them saves at most one resume and
///    suspend, and what work those do in somebody's gap is at most all of theirs: both are taken
///    off in the way that is best for the policy.
///
/// It is a bound, not a policy: it may be out of reach. With several processes, MES (where
/// switching stops nobody), fifo service or a gang, part 3 counts for little or is 0, and the bound
/// is the room.
class clairvoyant {
 public:
  /// \param what outlives it.
  /// \param longest stretch that it will be asked about.
  clairvoyant(const scenario& what, duration longest);

  /// \param p99 that the policy reached.
  /// \param stretch that it was measured in.
  /// \return the most offline work (run_result::offline_work) that can be done in it.
  duration work(duration p99, duration stretch) const { return most(lost(p99), stretch); }
  /// The same for who has other means than suspending queues, as SIGSTOP: part 1 alone.
  duration room(duration stretch) const { return most(0, stretch); }

 private:
  struct request_need {
    duration at{};
    std::uint32_t server = 0;
    double own = 0;     ///< Its GPU time, ns.
    double decode = 0;  ///< The part of it that its tokens take.
    double alone = 0;   ///< Own time and the offline kernels that no hold keeps away, at least.
  };
  /// Requests that came while those before them, from `from` on, could not be done yet.
  struct backlog {
    std::uint32_t server = 0;
    double from = 0;
    struct member {
      double at = 0;
      double work = 0;    ///< GPU time of what is done between `from` and its end, at least, ns.
      double decode = 0;  ///< The part of it that tokens take.
    };
    std::vector<member> requests;
  };
  void find_backlogs(const std::vector<arrivals>& dealt);
  /// The shortest run of so many consecutive offline kernels on any GPU, or less.
  double run_of(std::size_t count) const;
  /// The largest count for which run_of() is no more than that.
  std::size_t kernels_in(double time) const;

  double lost(duration p99) const;
  double lost_between_needy(duration p99) const;
  double lost_to_backlogs(duration p99) const;
  /// Between a backlog's begin and the end of that request, when it is in time.
  double lost_in_time(const backlog& since, const backlog::member& of, double p99) const;
  duration most(double lost, duration stretch) const;

  const scenario& what_;
  std::vector<request_need> requests_;  ///< By server, then in order of arrival.
  double exclusive_ = 0;                ///< Online time beside which no offline kernel fits, ns.
  /// By weighing: 0 is the occupancy itself.
  static constexpr std::array<double, 6> weighings{0, 0.3, 0.35, 0.4, 0.45, 0.5};
  template <class Value>
  using by_weighing = std::array<Value, weighings.size()>;
  by_weighing<double> waves_{};  ///< Online time, weighed, ns.
  double switch_cost_ = 0;       ///< A resume and a suspend, ns; 0: it stops nobody.
  bool needs_holds_ = false;
  std::vector<double> shortest_run_;  ///< Of 0, 1, 2... kernels, ns.
  std::vector<backlog> backlogs_;     ///< By server, then in order of time.
  double gap_ = 0;                    ///< Between two steps, ns.
  double longest_hold_ = 0;           ///< Between a suspend's end and its resume's begin, ns.
  double longest_decode_ = 0;         ///< Of one step, ns.
  struct sequence {
    std::vector<double> serial, elapsed, work;  ///< Sums before each step, ns.
    by_weighing<std::vector<double>> waves;
    std::size_t latest_begin = 0;  ///< Steps that may be over when the stretch begins.
  };
  std::vector<sequence> sequences_;  ///< By offline process.
};

}  // namespace sluice::lab
