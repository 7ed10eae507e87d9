import com.alibaba.fastjson2.JSON;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Makes each kind of send once, each to its own refused topic, and prints the caller's result.
 *
 * <p>Arguments: name server, producer group, prefix of the topics. A topic's name is the prefix and the call.
 * Prints one line of JSON: for each call how many milliseconds it took and the error's chain of causes, outermost
 * first, each with its class, its response code if it has one, and its message. No error is an empty chain.
 */
public final class RefusedCalls {
    private static final int REQUEST_TIMEOUT_MILLIS = 3000;

    private final TransactionMQProducer producer;
    private final String prefix;
    private final Map<String, Object> report = new LinkedHashMap<>();

    private RefusedCalls(TransactionMQProducer producer, String prefix) {
        this.producer = producer;
        this.prefix = prefix;
    }

    /** One way of sending. Completes {@code failed} with the callback's error. */
    private interface Call {
        void send(String topic, CompletableFuture<Throwable> failed) throws Exception;
    }

    public static void main(String[] args) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(args[1]);
        producer.setNamesrvAddr(args[0]);
        producer.setTransactionListener(new Committing());
        producer.start();
        RefusedCalls calls = new RefusedCalls(producer, args[2]);
        try {
            calls.makeAll();
        } catch (Exception error) {
            // The client's own threads would keep the program running.
            error.printStackTrace();
            System.exit(1);
        }
        producer.shutdown();
        System.out.println(JSON.toJSONString(calls.report));
        System.exit(0);
    }

    private void makeAll() throws Exception {
        make("sync", (topic, failed) -> producer.send(message(topic)));
        make("sync-ordered", (topic, failed) -> producer.send(message(topic), (queues, sent, key) -> queues.get(0), 1));
        make("async", (topic, failed) -> producer.send(message(topic), new Callback(failed)));
        make("batch", (topic, failed) -> producer.send(List.of(message(topic), message(topic), message(topic))));
        make("async-batch", (topic, failed) ->
            producer.send(List.of(message(topic), message(topic), message(topic)), new Callback(failed)));
        make("transaction", (topic, failed) -> producer.sendMessageInTransaction(message(topic), null));
        make("request", (topic, failed) -> producer.request(message(topic), REQUEST_TIMEOUT_MILLIS));
        make("async-request", (topic, failed) ->
            producer.request(message(topic), new Callback(failed), REQUEST_TIMEOUT_MILLIS));
        make("oneway", (topic, failed) -> {
            producer.sendOneway(message(topic));
            failed.complete(null);
        });
    }

    private void make(String name, Call call) throws Exception {
        String topic = prefix + name;
        // Finding the route and connecting are not part of the call.
        producer.fetchPublishMessageQueues(topic);
        CompletableFuture<Throwable> failed = new CompletableFuture<>();
        Throwable error = null;
        long start = System.nanoTime();
        try {
            call.send(topic, failed);
            if (name.startsWith("async") || name.equals("oneway")) {
                error = failed.get(4L * REQUEST_TIMEOUT_MILLIS, TimeUnit.MILLISECONDS);
            }
        } catch (Exception thrown) {
            error = thrown;
        }
        Map<String, Object> seen = new LinkedHashMap<>();
        seen.put("millis", (System.nanoTime() - start) / 1_000_000);
        seen.put("errors", chain(error));
        report.put(name, seen);
    }

    private static Message message(String topic) {
        return new Message(topic, new byte[128]);
    }

    private static List<Map<String, Object>> chain(Throwable error) {
        List<Map<String, Object>> errors = new ArrayList<>();
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            Map<String, Object> one = new LinkedHashMap<>();
            one.put("class", cause.getClass().getSimpleName());
            if (cause instanceof MQClientException) {
                one.put("code", ((MQClientException) cause).getResponseCode());
            } else if (cause instanceof MQBrokerException) {
                one.put("code", ((MQBrokerException) cause).getResponseCode());
            }
            one.put("message", cause.getMessage());
            errors.add(one);
        }
        return errors;
    }

    /** Passes on the end of an asynchronous send or request. */
    private static final class Callback implements SendCallback, RequestCallback {
        private final CompletableFuture<Throwable> failed;

        Callback(CompletableFuture<Throwable> failed) {
            this.failed = failed;
        }

        @Override
        public void onSuccess(SendResult result) {
            failed.complete(null);
        }

        @Override
        public void onSuccess(Message answer) {
            failed.complete(null);
        }

        @Override
        public void onException(Throwable error) {
            failed.complete(error);
        }
    }

    /** Would commit each transaction, but is not called if the first half is refused. */
    private static final class Committing implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return LocalTransactionState.COMMIT_MESSAGE;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return LocalTransactionState.COMMIT_MESSAGE;
        }
    }
}
