// Consumes messages of a queue with amqp091-go and acknowledges each.
//
// Arguments: host, port, queue, count. Prints "started" when it consumes, and at its end one line of JSON: of each
// message, in order, the client's text of its properties, and its body in hex.
package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"
)

func run(host, port, queue, count string) ([][2]string, error) {
	wanted, err := strconv.Atoi(count)
	if err != nil {
		return nil, err
	}
	connection, err := amqp.Dial("amqp://guest:guest@" + host + ":" + port + "/")
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return nil, err
	}
	deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		return nil, err
	}
	fmt.Println("started")
	seen := [][2]string{}
	for delivery := range deliveries {
		properties := fmt.Sprintf("%#v %q %q %d %d %q %q %q %q %d %q %q %q", delivery.Headers, delivery.ContentType,
			delivery.ContentEncoding, delivery.DeliveryMode, delivery.Priority, delivery.CorrelationId,
			delivery.ReplyTo, delivery.Expiration, delivery.MessageId, delivery.Timestamp.UnixNano(), delivery.Type,
			delivery.UserId, delivery.AppId)
		seen = append(seen, [2]string{properties, hex.EncodeToString(delivery.Body)})
		if err := delivery.Ack(false); err != nil {
			return nil, err
		}
		if len(seen) == wanted {
			return seen, channel.Close()
		}
	}
	return nil, fmt.Errorf("the channel was closed after %d messages", len(seen))
}

func main() {
	report, err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
		os.Exit(1)
	}
}
