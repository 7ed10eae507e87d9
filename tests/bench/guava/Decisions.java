import com.google.common.util.concurrent.RateLimiter;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.charset.StandardCharsets;

/**
 * Guava's RateLimiter in one thread: for each line on standard input, a number of seconds, it decides for that time
 * and prints the nanoseconds of processor time per decision. The first measurement warms it up.
 */
final class Decisions {
  private static final int CALLS_BETWEEN_LOOKS = 1000;
  private static final double PLENTY_PER_S = 1e9;

  private Decisions() {}

  public static void main(String[] arguments) throws Exception {
    RateLimiter limiter = RateLimiter.create(PLENTY_PER_S);
    BufferedReader questions = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
    for (String question = questions.readLine(); question != null; question = questions.readLine()) {
      System.out.println(nanosPerDecision(limiter, Double.parseDouble(question)));
      System.out.flush();
    }
  }

  private static double nanosPerDecision(RateLimiter limiter, double seconds) {
    ThreadMXBean threads = ManagementFactory.getThreadMXBean();
    long calls = 0;
    long admitted = 0;
    // Not the time of day, which includes other work of the machine.
    long start = threads.getCurrentThreadCpuTime();
    long now = start;
    while (now - start < seconds * 1e9) {
      for (int call = 0; call < CALLS_BETWEEN_LOOKS; call++) {
        if (limiter.tryAcquire()) {
          admitted++;
        }
      }
      calls += CALLS_BETWEEN_LOOKS;
      now = threads.getCurrentThreadCpuTime();
    }
    if (admitted != calls) {
      throw new IllegalStateException(calls - admitted + " of " + calls + " calls were refused");
    }
    return (double) (now - start) / calls;
  }
}
