// Publishes to several queues in turn with amqp091-go over one confirm channel, with many unconfirmed publishes.
//
// Arguments: host, port, seconds, queue… The body of a message is its number, for each queue from 0. Prints one line of
// JSON: for each queue the acked and nacked numbers, and other errors. With DELIVERY_MODE=2 in the environment messages
// are persistent. AT_ONCE is the number of unconfirmed publishes to all queues.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

type counts struct {
	Acked  []int    `json:"acked"`
	Nacked []int    `json:"nacked"`
	Failed []string `json:"failed"`
}

func run(host, port, seconds string, queues []string) (map[string]*counts, error) {
	runs, err := strconv.Atoi(seconds)
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
	report := map[string]*counts{}
	for _, queue := range queues {
		if _, err := channel.QueueDeclare(queue, true, false, false, false, nil); err != nil {
			return nil, err
		}
		report[queue] = &counts{Acked: []int{}, Nacked: []int{}, Failed: []string{}}
	}
	if err := channel.Confirm(false); err != nil {
		return nil, err
	}
	mode := amqp.Transient
	if os.Getenv("DELIVERY_MODE") == "2" {
		mode = amqp.Persistent
	}
	atOnce := 500
	if text := os.Getenv("AT_ONCE"); text != "" {
		if atOnce, err = strconv.Atoi(text); err != nil {
			return nil, err
		}
	}
	var lock sync.Mutex
	var waiting sync.WaitGroup
	free := make(chan struct{}, atOnce)
	end := time.Now().Add(time.Duration(runs) * time.Second)
	for number := 0; time.Now().Before(end); number++ {
		for _, queue := range queues {
			free <- struct{}{}
			message := amqp.Publishing{DeliveryMode: mode, Body: []byte(strconv.Itoa(number))}
			confirmation, err := channel.PublishWithDeferredConfirm("", queue, false, false, message)
			if err != nil {
				return nil, err
			}
			waiting.Add(1)
			go func(queue string, number int) {
				defer waiting.Done()
				patience, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				acked, err := confirmation.WaitContext(patience)
				lock.Lock()
				defer lock.Unlock()
				switch {
				case err != nil:
					report[queue].Failed = append(report[queue].Failed, err.Error())
				case acked:
					report[queue].Acked = append(report[queue].Acked, number)
				default:
					report[queue].Nacked = append(report[queue].Nacked, number)
				}
				<-free
			}(queue, number)
		}
	}
	waiting.Wait()
	return report, nil
}

func main() {
	report, err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
		os.Exit(1)
	}
}
