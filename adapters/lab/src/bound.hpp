#pragma once
/// \file
/// What no policy can beat: an upper bound on offline throughput, as a function of the online p99,
/// for somebody who knows every arrival and every kernel in advance.

#include "experiment.hpp"

#include <array>
#include <vector>

namespace sluice::lab {

/// Why no policy beats it at the same p99. A policy suspends and resumes offline queues and, by
/// batch commands, reserves slots, no more; the server and the offline processes are what they are.
/// Let S be the stretch.
///
/// 1. *Room.* Online kernels run B seconds in S whatever the policy does: every request that is
///    finished has had its tokens' time. So a kernel of full occupancy leaves offline S - B at
///    most, and one of part of the wave slots that part. Offline work is an exact sequence of
///    kernels (but where a process keeps several queues filled); of it there is done at most what
///    fits: kernels of one queue one after the other, all of them within the wave slots, steps with
///    the host gaps between them, and of a gang with an exchange, which may run beside online
///    kernels that its kernels exclude.
///
/// The rest holds where suspending is the only means and each GPU has one offline queue, always
/// filled, none of whose kernels fits beside an online one: on a runlist, by debug trap, one
/// process with one queue. Elsewhere (MES, batch commands with their reservations, several
/// processes or queues, gangs, `train`; no time to wake up) the bound is the room. A *hold* lasts
/// from a suspend's begin to its resume's end. Online work is done in steps (fifo: a step is a
/// request); a gap lasts from the end of one until the kernels of the next begin. Where no hold is
/// in a gap, an offline kernel comes into it, and the next step waits until that has ended.
///
/// 2. *Needy requests.* A request of g steps (continuous service) in whose life there is no hold
///    takes at least its own GPU time and the shortest g - 1 consecutive kernels of the offline
///    sequence. If that is more than p, there is a hold in its life, which ends at most p after its
///    arrival.
/// 3. *Between two needy requests* i and j there is then either one hold that covers [arrival of
///    i + p, arrival of j], in which offline gets nothing and the GPU is idle but for the requests
///    that came between the two; or another suspend, and a resume, in which nothing at all runs.
///    The least of both is lost. Along a chain of needy requests these losses add up; the chain
///    that loses most is taken.
/// 4. *p99 forgives one request in a hundred.* Striking one of them saves at most one resume and
///    suspend, and what work those do between two others is at most all of theirs: both are taken
///    off in the way that is best for the policy.
/// 5. *Backlogs.* From a request's arrival t on, let others come faster than their GPU time allows,
///    and let i be one of them that is done in time, by its arrival + p. Between t and then run all
///    kernels of those that came between t and i, but what those of i's last batch have left
///    undone; what remains of that time is to spare, for offline kernels and for what is lost. In
///    each gap without a hold one kernel ends (perhaps one that a hold had cut, whose first part
///    then ran in that hold's gap): so many as fit, at the shortest, into what is to spare, and one
///    that had begun before t. The work takes at least so many steps as if all were the longest
///    that there are (continuous: most_active tokens; fifo: the longest request of these). A hold
///    lasts no longer than max_suspend allows, so it is in one gap more, at most, than steps fit
///    into it whole. That gives the least number of holds. Each costs its suspend and its resume,
///    and each gap that a hold covers whole is idle for as long as a host takes to wake up. What is
///    lost inside is not to spare: the count is repeated with that.
/// 6. *Backlogs that do not overlap*, [t, arrival of i + p] each, add up; where one follows another
///    within the time of a hold, they may have one hold in common. Of each backlog the i counts
///    that demands most, after as many as the policy likes are forgiven: at any price per forgiven
///    request, the cheapest choice for every backlog, less the price of all that p99 forgives, is a
///    lower bound. The best of some prices is taken; and of 2 to 4 and of 5 to 6, what loses more.
///
/// It is a bound, not a policy: it may be out of reach.
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
      double work = 0;   ///< GPU time of what is done between `from` and its end, at least, ns.
      double steps = 0;  ///< So many it takes at least, of the longest kind; a fraction.
      double steps_in_hold = 0;  ///< As many of these as fit into the longest hold.
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
  /// What of a process's sequence: its kernels, a gang's exchanges, and both.
  enum part : std::size_t { kernels_alone, exchanges, all, parts };
  template <class Value>
  using by_part = std::array<Value, parts>;
  by_part<double> exclusive_{};  ///< Online time beside which none of that fits, ns.
  double least_occupancy_ = 1;   ///< Of offline kernels.
  /// By weighing: 0 is the occupancy itself.
  static constexpr std::array<double, 6> weighings{0, 0.3, 0.35, 0.4, 0.45, 0.5};
  template <class Value>
  using by_weighing = std::array<Value, weighings.size()>;
  by_weighing<double> waves_{};  ///< Online time, weighed, ns.
  double switch_cost_ = 0;       ///< A suspend and a resume, ns.
  bool needs_holds_ = false;
  std::vector<double> shortest_run_;  ///< Of 0, 1, 2... kernels, ns.
  std::vector<backlog> backlogs_;     ///< By server, then in order of time.
  double gap_ = 0;                    ///< Between two steps, at least, ns.
  double longest_hold_ = 0;           ///< ns.
  struct sequence {
    std::vector<double> elapsed, work;  ///< Sums before each step, ns.
    by_part<std::vector<double>> serial;
    by_weighing<std::vector<double>> waves;
    std::size_t latest_begin = 0;  ///< Steps that may be over when the stretch begins.
  };
  std::vector<sequence> sequences_;  ///< By offline process; empty where no order is known.
};

}  // namespace sluice::lab
