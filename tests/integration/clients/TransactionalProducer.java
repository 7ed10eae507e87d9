import com.alibaba.fastjson2.JSON;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends messages in transactions, some of them committed, some rolled back, and some left open until the broker asks.
 *
 * <p>Arguments: name server, producer group, topic, numbers of messages to commit, to roll back, and to
 * commit when asked. Prints one line of JSON.
 */
public final class TransactionalProducer {
    private TransactionalProducer() {}

    public static void main(String[] args) throws Exception {
        // The client's threads would keep the program running after a failed send.
        Thread.currentThread().setUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            System.exit(1);
        });
        int asked = Integer.parseInt(args[5]);
        CountDownLatch open = new CountDownLatch(asked);
        TransactionMQProducer producer = new TransactionMQProducer(args[1]);
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(30_000);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object state) {
                return (LocalTransactionState) state;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                open.countDown();
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        send(producer, args[2], Integer.parseInt(args[3]), LocalTransactionState.COMMIT_MESSAGE);
        send(producer, args[2], Integer.parseInt(args[4]), LocalTransactionState.ROLLBACK_MESSAGE);
        send(producer, args[2], asked, LocalTransactionState.UNKNOW);
        boolean all = open.await(100, TimeUnit.SECONDS);
        // The ends of transactions have no answers, so the last ones may be in flight.
        TimeUnit.SECONDS.sleep(1);
        producer.shutdown();
        System.out.println(JSON.toJSONString(Map.of("asked", all)));
        System.exit(0);
    }

    private static void send(TransactionMQProducer producer, String topic, int count, LocalTransactionState state)
            throws Exception {
        for (int number = 0; number < count; number++) {
            byte[] body = ("message " + number).getBytes(StandardCharsets.US_ASCII);
            producer.sendMessageInTransaction(new Message(topic, body), state);
        }
    }
}
