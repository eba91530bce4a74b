import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Consumers that do what a test tells them: a command per line on stdin, its words separated by spaces. Each answer on stdout ends
 * with a line that holds a dot; the line before it begins with "error" if something went wrong.
 */
public class Consumers {
    private static final Map<String, KafkaConsumer<String, String>> consumers = new HashMap<>();

    public static void main(String[] args) throws IOException {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null; ) {
            String[] words = line.split(" ");
            try {
                obey(words[0], words[1], words);
            } catch (RuntimeException e) {
                System.out.println("error " + e.toString().replace('\n', ' '));
            }
            System.out.println(".");
            System.out.flush();
        }
    }

    private static void obey(String command, String name, String[] words) {
        switch (command) {
            case "open": // NAME ADDRESS TOPIC RESET [OFFSET EPOCH]
                TopicPartition partition = new TopicPartition(words[3], 0);
                KafkaConsumer<String, String> opened = new KafkaConsumer<>(Map.of(
                    "client.id", name, "group.id", name, "bootstrap.servers", words[2], "auto.offset.reset", words[4],
                    "enable.auto.commit", "false", "fetch.max.wait.ms", "100"), new StringDeserializer(), new StringDeserializer());
                consumers.put(name, opened);
                opened.assign(List.of(partition));
                if (words.length > 5) {
                    Optional<Integer> epoch = Optional.of(Integer.valueOf(words[6])).filter(e -> e >= 0);
                    opened.seek(partition, new OffsetAndMetadata(Long.parseLong(words[5]), epoch, ""));
                }
                break;
            case "read": // NAME OFFSET MILLISECONDS: up to the record before the offset
                read(consumers.get(name), Long.parseLong(words[2]), Long.parseLong(words[3]));
                break;
            case "commit": // NAME
                consumers.get(name).commitSync();
                break;
            case "close": // NAME
                consumers.remove(name).close();
                break;
            default:
                throw new IllegalArgumentException(command);
        }
    }

    private static void read(KafkaConsumer<String, String> consumer, long until, long milliseconds) {
        long begin = System.nanoTime();
        for (long next = -1; next < until; ) {
            if (System.nanoTime() - begin > TimeUnit.MILLISECONDS.toNanos(milliseconds)) {
                throw new IllegalStateException("stands still, has read up to offset " + next);
            }
            for (ConsumerRecord<String, String> r : consumer.poll(Duration.ofMillis(100))) {
                System.out.println(r.offset() + " " + r.value());
                next = r.offset() + 1;
            }
        }
    }
}
