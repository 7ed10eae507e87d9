import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.plugin.AbstractPluginMessageStore;
import org.apache.rocketmq.store.plugin.MessageStorePluginContext;
import org.apache.rocketmq.store.rocksdb.MessageRocksDBStorage;
import org.apache.rocketmq.store.timer.rocksdb.TimerMessageRocksDBStore;
import org.apache.rocketmq.store.transaction.TransMessageRocksDBStore;

/**
 * A disk with slow flushes for the broker: a message counts as stored this many milliseconds after the real store has
 * it, as with SYNC_FLUSH on such a disk.
 *
 * <p>The broker loads it by the setting messageStorePlugIn. As in the broker, a send does not block its thread during
 * the flush, but a send-back does.
 */
public final class SlowDisk extends AbstractPluginMessageStore {
    private final Executor flushed =
        CompletableFuture.delayedExecutor(Long.getLong("slowDisk.flushMillis"), TimeUnit.MILLISECONDS);

    public SlowDisk(MessageStorePluginContext context, MessageStore next) {
        super(context, next);
    }

    @Override
    public CompletableFuture<PutMessageResult> asyncPutMessage(MessageExtBrokerInner message) {
        return next.asyncPutMessage(message).thenApplyAsync(result -> result, flushed);
    }

    @Override
    public CompletableFuture<PutMessageResult> asyncPutMessages(MessageExtBatch batch) {
        return next.asyncPutMessages(batch).thenApplyAsync(result -> result, flushed);
    }

    @Override
    public PutMessageResult putMessage(MessageExtBrokerInner message) {
        return asyncPutMessage(message).join();
    }

    @Override
    public PutMessageResult putMessages(MessageExtBatch batch) {
        return asyncPutMessages(batch).join();
    }

    // Abstract in this version's base class.

    @Override
    public QueryMessageResult queryMessage(
        String topic, String key, int most, long from, long to, String indexType, String lastKey) {
        return next.queryMessage(topic, key, most, from, to, indexType, lastKey);
    }

    @Override
    public CompletableFuture<QueryMessageResult> queryMessageAsync(
        String topic, String key, int most, long from, long to, String indexType, String lastKey) {
        return next.queryMessageAsync(topic, key, most, from, to, indexType, lastKey);
    }

    @Override
    public MessageRocksDBStorage getMessageRocksDBStorage() {
        return next.getMessageRocksDBStorage();
    }

    @Override
    public TimerMessageRocksDBStore getTimerMessageRocksDBStore() {
        return next.getTimerMessageRocksDBStore();
    }

    @Override
    public void setTimerMessageRocksDBStore(TimerMessageRocksDBStore store) {
        next.setTimerMessageRocksDBStore(store);
    }

    @Override
    public TransMessageRocksDBStore getTransMessageRocksDBStore() {
        return next.getTransMessageRocksDBStore();
    }

    @Override
    public void setTransMessageRocksDBStore(TransMessageRocksDBStore store) {
        next.setTransMessageRocksDBStore(store);
    }
}
