// Package redis keeps records in Redis.
package redis
